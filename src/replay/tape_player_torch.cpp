#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "observe/generator_state_torch.h"
#include "observe/no_warnings_torch.h"
#include "observe/settings_torch.h"
#include "observe/tape_values_torch.h"
#include "replay/tape_memory_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::Tape;

constexpr std::uint32_t kMaxGenerators = 4096;

// Operators that reach outside the process, or take an address for granted.
bool reaches_out(const std::string& name) {
  for (const char* denied :
       {"aten::from_file", "aten::_cuda", "aten::_cudnn", "aten::_unsafe_masked_index_put_accumulate"}) {
    if (name.starts_with(denied)) return true;
  }
  return false;
}

std::string full_name(const capture::Operator& op) {
  return op.overload.empty() ? op.name : op.name + "." + op.overload;
}

std::optional<c10::ScalarType> dtype_named(const std::string& name) {
  if (name.empty()) return std::nullopt;
  TORCH_CHECK(name == "float32" || name == "float64", "a step is computed in float32 or float64, not ", name);
  return name == "float32" ? c10::ScalarType::Float : c10::ScalarType::Double;
}

// Attention is said to draw random numbers; without dropout it does not.
bool may_draw(const c10::OperatorHandle& op, const std::vector<capture::Value>& args) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto& known = op.schema().arguments();
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (known[i].name() == "dropout_p" && args[i].kind == capture::Value::kDouble && args[i].real == 0)
      return false;
  }
  return true;
}

class Player {
 public:
  Player(const Tape& tape, const PlayOptions& options, PlayObserver* observer)
      : tape_(tape),
        options_(options),
        observer_(observer),
        dtype_(dtype_named(options.dtype)),
        memory_(tape, dtype_, observer) {}

  Played run() {
    find_operators();
    if (!played_.missing.empty()) return std::move(played_);
    const at::DisableRecordFunctionGuard unobserved;
    const observe::NoWarnings no_warnings;  // the step may have warned when it ran
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::AutoGradMode grad_mode_before(at::GradMode::is_enabled());
    observe::Settings settings = tape_.settings;
    if (options_.threads > 0) settings.emplace_back("threads", std::to_string(options_.threads));
    if (options_.deterministic) {
      settings.emplace_back("deterministic_warn_only", "0");
      settings.emplace_back("deterministic", "1");
    }
    const observe::WithSettings with(settings);
    if (dtype_) c10::set_default_dtype(c10::scalarTypeToTypeMeta(*dtype_));  // goes back with the settings
    generators_.push_back(at::detail::getDefaultCPUGenerator());
    const std::string random_before = observe::generator_state(generators_[0]);
    const auto began = std::chrono::steady_clock::now();
    std::size_t i = 0;
    try {
      for (; i < tape_.entries.size() && played_.why_not.empty() && !played_.stopped; ++i) {
        if (std::string reason = entry(i); !reason.empty()) fail(i, reason);
        memory_.after_entry(i);
      }
      played_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      if (played_.why_not.empty() && !played_.stopped) judge();
    } catch (const c10::Error& e) {
      fail(i, e.what_without_backtrace());
    } catch (const std::exception& e) {
      fail(i, e.what());
    } catch (...) {
      fail(i, "an unknown error");
    }
    observe::set_generator_state(generators_[0], random_before);
    return std::move(played_);
  }

 private:
  void find_operators() {
    for (const capture::Operator& op : tape_.operators) {
      const std::string space = op.name.substr(0, op.name.find("::"));
      const bool allowed = std::find(options_.namespaces.begin(), options_.namespaces.end(), space) !=
                           options_.namespaces.end();
      const auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
      if (!allowed || reaches_out(op.name)) {
        played_.missing.push_back(full_name(op) + " (not allowed)");
      } else if (!handle) {
        played_.missing.push_back(full_name(op) + " (not registered here)");
      } else {
        operators_.push_back(*handle);
      }
    }
  }

  void fail(std::size_t index, const std::string& reason) {
    std::string where = "after the last call";
    if (index < tape_.entries.size()) {
      const Entry& entry = tape_.entries[index];
      where = "entry " + std::to_string(index) + " of " + std::to_string(tape_.entries.size());
      if (entry.kind == Entry::kCall && entry.number < tape_.operators.size())
        where += ", " + full_name(tape_.operators[entry.number]);
    }
    played_.why_not = where + ": " + reason.substr(0, 400);
    played_.outcomes.clear();
  }

  std::string entry(std::size_t index) {
    const Entry& e = tape_.entries[index];
    if (e.kind == Entry::kFill) {
      memory_.fill(index);
      return "";
    }
    if (e.kind == Entry::kRandom) {
      if (e.number >= kMaxGenerators) return "too many generators";
      while (e.number >= generators_.size()) generators_.push_back(at::detail::createCPUGenerator());
      return observe::set_generator_state(generators_[e.number], e.bytes) ? ""
                                                                          : "not the state of a generator";
    }
    if (e.number >= operators_.size()) return "an operator that the tape does not have";
    const c10::OperatorHandle& op = operators_[e.number];
    const auto& arguments = op.schema().arguments();
    if (e.args.size() != arguments.size()) return "takes " + std::to_string(arguments.size()) + " arguments";
    at::GradMode::set_enabled(e.grad_mode);
    if (!dtype_) return issue(index, op);
    // What is drawn depends on the dtype: the same numbers come of the same dtype only.
    if (!memory_.converts(e.args) && !memory_.converts(e.results)) return issue_as_recorded(index, op);
    std::string why = may_draw(op, e.args) ? "draws random numbers" : "";
    if (why.empty()) {
      const auto fresh = memory_.unmade(e.results);
      try {
        why = issue(index, op);
      } catch (const c10::Error& error) {
        why = error.what_without_backtrace();
      }
      if (why.empty()) return "";
      memory_.unmake(fresh);
    }
    played_.as_recorded.try_emplace(full_name(tape_.operators[e.number]), why.substr(0, why.find('\n')));
    return issue_as_recorded(index, op);
  }

  std::string issue(std::size_t index, const c10::OperatorHandle& op) {
    const Entry& e = tape_.entries[index];
    const auto& arguments = op.schema().arguments();
    torch::jit::Stack stack, given;
    stack.reserve(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      stack.push_back(memory_.argument(e.args[i], arguments[i], generators_));
    }
    if (observer_ != nullptr) {
      observer_->change(index, op.schema(), stack);
      given = stack;
      observer_->before({index, op.schema(), given, {}});
    }
    {
      const at::RecordFunctionGuard traced(observer_ != nullptr && observer_->is_traced());
      op.callBoxed(&stack);
    }
    ++played_.calls;
    if (stack.size() != e.results.size()) return "gave another number of results";
    for (std::size_t i = 0; i < stack.size(); ++i) {
      if (std::string reason = memory_.bind(e.results[i], stack[i]); !reason.empty()) return reason;
    }
    if (observer_ != nullptr) played_.stopped = !observer_->after({index, op.schema(), given, stack});
    return "";
  }

  std::string issue_as_recorded(std::size_t index, const c10::OperatorHandle& op) {
    const auto usual = c10::get_default_dtype();
    if (const std::string* recorded = tape_.setting("default_dtype")) {
      const int number = std::atoi(recorded->c_str());
      if (number == static_cast<int>(c10::ScalarType::Float) ||
          number == static_cast<int>(c10::ScalarType::Double))
        c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(number)));
    }
    memory_.set_as_recorded(true);
    std::string reason = issue(index, op);
    memory_.set_as_recorded(false);
    c10::set_default_dtype(usual);
    return reason;
  }

  void judge() {
    for (std::size_t i = 0; i < tape_.outcomes.size(); ++i) {
      const capture::Outcome& outcome = tape_.outcomes[i];
      const at::Tensor tensor = memory_.tensor(outcome.value);
      if (observer_ != nullptr) observer_->outcome(i, tensor);
      played_.outcomes.push_back({outcome.kind, outcome.name, outcome.checksum, observe::tape_checksum(tensor),
                                  outcome.flaws, observe::tape_flaws(tensor)});
    }
  }

  const Tape& tape_;
  const PlayOptions& options_;
  PlayObserver* const observer_;
  const std::optional<c10::ScalarType> dtype_;
  Played played_;
  std::vector<c10::OperatorHandle> operators_;
  std::vector<at::Generator> generators_;
  TapeMemory memory_;
};

}  // namespace

Played play(const Tape& tape, const PlayOptions& options, PlayObserver* observer) {
  try {
    return Player(tape, options, observer).run();
  } catch (const std::exception& e) {
    Played failed;
    failed.why_not = e.what();
    return failed;
  }
}

}  // namespace finitude::replay
