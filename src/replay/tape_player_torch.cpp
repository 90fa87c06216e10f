#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
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

#include "observe/device_memory_torch.h"
#include "observe/generator_state_torch.h"
#include "observe/no_warnings_torch.h"
#include "observe/settings_torch.h"
#include "observe/tape_values_torch.h"
#include "replay/crash_line_posix.h"
#include "replay/plain_call_torch.h"
#include "replay/play_deadline.h"
#include "replay/tape_calls.h"
#include "replay/tape_elsewhere_torch.h"
#include "replay/tape_indices_torch.h"
#include "replay/tape_memory_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"
#include "replay/tape_together_torch.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::Tape;

constexpr std::uint32_t kMaxGenerators = 4096;

// Operators that change the process, or take an address for granted.
bool is_denied(const std::string& name) {
  return name.starts_with("aten::_cuda") || name.starts_with("aten::_unsafe_masked_index_put_accumulate");
}

bool holds_tensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto inside = type->containedTypes();
  return std::any_of(inside.begin(), inside.end(), holds_tensor);
}

// What reads and gives no tensor computes nothing of a step: it prints, or sets something in the process. What takes
// the name of a file reads or writes that.
bool acts_outside(const c10::FunctionSchema& schema) {
  const auto with_tensor = [](const c10::Argument& argument) { return holds_tensor(argument.type()); };
  const auto& given = schema.arguments();
  const auto& gives = schema.returns();
  if (std::none_of(given.begin(), given.end(), with_tensor) && std::none_of(gives.begin(), gives.end(), with_tensor))
    return true;
  return std::any_of(given.begin(), given.end(), [](const c10::Argument& argument) {
    return argument.name() == "filename" || argument.name() == "path";
  });
}

std::string full_name(const capture::Operator& op) {
  return op.overload.empty() ? op.name : op.name + "." + op.overload;
}

std::optional<c10::ScalarType> dtype_named(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return c10::ScalarType::BFloat16;
  TORCH_CHECK(name == "float32" || name == "float64", "a step is computed in float32, float64 or bfloat16, not ", name);
  return name == "float32" ? c10::ScalarType::Float : c10::ScalarType::Double;
}

// Attention is said to draw random numbers; without dropout it does not.
bool may_draw(const c10::OperatorHandle& op, const std::vector<capture::Value>& args) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto& known = op.schema().arguments();
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (known[i].name() == "dropout_p" && args[i].kind == capture::Value::kDouble && args[i].real == 0) return false;
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
        map_(map_devices(tape, options.dtype.empty() ? options.device : "cpu")),
        memory_(tape, dtype_, map_, observer) {
    if (options.together) exchanges_.emplace(tape, *options.together, memory_);
  }

  Played run() {
    TORCH_CHECK(map_.missing.empty(), map_.missing);
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
    add_generators(1);
    const auto began = std::chrono::steady_clock::now();
    std::size_t i = 0;
    try {
      for (; i < tape_.entries.size() && played_.why_not.empty() && !played_.stopped; ++i) {
        if (PlayDeadline::has_passed()) {
          played_.why_not = PlayDeadline::kWhy;
          break;
        }
        if (exchanges_) exchanges_->before_entry(i);
        if (std::string reason = entry(i); !reason.empty()) fail(i, reason);
        memory_.after_entry(i);
      }
      if (exchanges_ && played_.why_not.empty() && !played_.stopped) exchanges_->finish();
      played_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      if (played_.why_not.empty() && !played_.stopped) judge();
    } catch (const RankMissing& e) {
      played_.why_not = e.what();
      played_.waited = true;
    } catch (const c10::Error& e) {
      fail(i, e.what_without_backtrace());
    } catch (const std::exception& e) {
      fail(i, e.what());
    } catch (...) {
      fail(i, "an unknown error");
    }
    for (const auto& [generator, before] : defaults_) observe::set_generator_state(generator, before);
    if (exchanges_) played_.exchanges = exchanges_->take();
    return std::move(played_);
  }

 private:
  void find_operators() {
    for (const capture::Operator& op : tape_.operators) {
      const std::string space = op.name.substr(0, op.name.find("::"));
      const bool allowed =
          std::find(options_.namespaces.begin(), options_.namespaces.end(), space) != options_.namespaces.end();
      const auto handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
      if (!allowed || is_denied(op.name) || (handle && acts_outside(handle->schema()))) {
        played_.missing.push_back(full_name(op) + " (not allowed)");
      } else if (!handle) {
        played_.missing.push_back(full_name(op) + " (not registered here)");
      } else {
        operators_.push_back(*handle);
      }
    }
    if (!map_.elsewhere || !played_.missing.empty()) return;
    for (const std::string& name : only_there(tape_, map_, operators_)) played_.missing.push_back(name);
  }

  // Up to this many. Those of a device that the step is not played on are never set: what they gave is on the tape.
  void add_generators(std::size_t count) {
    while (generators_.size() < count) {
      const capture::GeneratorHome home = capture::generator_home(tape_, generators_.size());
      const c10::Device there = home.device == 0 ? c10::Device(at::kCPU) : map_.at(home.device);
      if (home.is_default && (home.device == 0 || !there.is_cpu())) {
        generators_.push_back(at::globalContext().defaultGenerator(there));
        defaults_.emplace_back(generators_.back(), observe::generator_state(generators_.back()));
      } else if (there.is_cpu()) {
        generators_.push_back(at::detail::createCPUGenerator());
      } else {
        generators_.push_back(
            at::globalContext().getAcceleratorHooksInterface(there.type()).getNewGenerator(there.index()));
      }
    }
  }

  void fail(std::size_t index, const std::string& reason) {
    std::string where = "after the last call";
    if (index < tape_.entries.size()) {
      const std::string place = place_of(tape_, index);
      where = call_name(tape_, index) + (place.empty() ? "" : " at " + place.substr(2, 200));
    }
    played_.why_not = where + ": " + reason.substr(0, 400);
    played_.outcomes.clear();
  }

  std::string entry(std::size_t index) {
    const Entry& e = tape_.entries[index];
    if (e.kind == Entry::kFill) {
      if (!exchanges_ || !exchanges_->gave(index)) memory_.fill(index);
      return "";
    }
    if (e.kind == Entry::kRandom) {
      if (e.number >= kMaxGenerators) return "too many generators";
      add_generators(std::size_t{e.number} + 1);
      if (const auto home = capture::generator_home(tape_, e.number).device; home != 0 && map_.at(home).is_cpu())
        return "";
      return observe::set_generator_state(generators_[e.number], e.bytes) ? "" : "not the state of a generator";
    }
    if (e.number >= operators_.size()) return "an operator that the tape does not have";
    const c10::OperatorHandle& op = operators_[e.number];
    const auto& arguments = op.schema().arguments();
    if (e.args.size() != arguments.size()) return "takes " + std::to_string(arguments.size()) + " arguments";
    at::GradMode::set_enabled(e.grad_mode);
    if (map_.elsewhere && (op.hasTag(at::Tag::nondeterministic_seeded) || !is_here(op, map_)) &&
        results_are_recorded(tape_, index))
      return take(index, op);
    if (!dtype_) return map_.elsewhere ? issue_elsewhere(index, op) : issue(index, op);
    // What is drawn depends on the dtype: the same numbers come of the same dtype only.
    if (!memory_.converts(e.args) && !memory_.converts(e.results)) return issue_as_recorded(index, op);
    std::string why = may_draw(op, e.args) ? "draws random numbers" : "";
    if (why.empty()) {
      const auto fresh = memory_.unmade(e.results);
      try {
        why = issue(index, op, map_.elsewhere ? device_form(tape_.operators[e.number].name) : nullptr);
      } catch (const c10::Error& error) {
        why = error.what_without_backtrace();
      }
      if (why.empty()) return "";
      memory_.unmake(fresh);
    }
    played_.as_recorded.try_emplace(full_name(tape_.operators[e.number]), why.substr(0, why.find('\n')));
    return issue_as_recorded(index, op);
  }

  // What the call drew, or what came of it, is on the tape behind it.
  std::string take(std::size_t index, const c10::OperatorHandle& op) {
    const Entry& e = tape_.entries[index];
    torch::jit::Stack given, results;
    if (observer_ != nullptr) {
      given = arguments_of(index, op);
      observer_->before({index, op.schema(), given, {}});
    }
    memory_.make(e.results);
    for (std::size_t i = index + 1; i < tape_.entries.size() && tape_.entries[i].kind == Entry::kFill; ++i)
      memory_.fill(i);
    ++played_.calls;
    played_.otherwise.try_emplace(full_name(tape_.operators[e.number]), "as recorded");
    if (observer_ == nullptr) return "";
    for (const capture::Value& result : e.results) results.push_back(memory_.given(result));
    played_.stopped = !observer_->after({index, op.schema(), given, results});
    return "";
  }

  std::string issue_elsewhere(std::size_t index, const c10::OperatorHandle& op) {
    const Entry& e = tape_.entries[index];
    const bool on_host = !c10::Device(map_.target).is_cpu() && (may_draw(op, e.args) || !is_here(op, map_));
    if (on_host) played_.otherwise.try_emplace(full_name(tape_.operators[e.number]), "on the CPU");
    memory_.set_on_host(on_host);
    std::string reason = issue(index, op, device_form(tape_.operators[e.number].name));
    memory_.set_on_host(false);
    return reason;
  }

  torch::jit::Stack arguments_of(std::size_t index, const c10::OperatorHandle& op) {
    const Entry& e = tape_.entries[index];
    const auto& arguments = op.schema().arguments();
    torch::jit::Stack stack;
    stack.reserve(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      stack.push_back(memory_.argument(e.args[i], arguments[i], generators_));
    }
    return stack;
  }

  // form: how to compute it without the operator; null: by the operator.
  std::string issue(std::size_t index, const c10::OperatorHandle& op, DeviceForm form = nullptr) {
    const Entry& e = tape_.entries[index];
    torch::jit::Stack stack = arguments_of(index, op), given;
    if (observer_ != nullptr) {
      observer_->change(index, op.schema(), stack);
      given = stack;
      observer_->before({index, op.schema(), given, {}});
    }
    torch::jit::Stack found;
    if (form != nullptr) found = form(PlainCall(op.schema(), stack));
    if (!found.empty()) {
      played_.otherwise.try_emplace(full_name(tape_.operators[e.number]), "by plain operations");
      return formed(index, op, std::move(found), given);
    }
    if (observer_ != nullptr) {
      if (auto own = observer_->computed({index, op.schema(), given, {}}))
        return formed(index, op, std::move(*own), given);
    }
    {
      check_trusted_indices(op.schema(), stack);
      const at::RecordFunctionGuard traced(observer_ != nullptr && observer_->is_traced());
      const AtWork named(tape_.operators[e.number].name.c_str(), index);
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

  std::string formed(std::size_t index, const c10::OperatorHandle& op, torch::jit::Stack found,
                     const torch::jit::Stack& given) {
    const Entry& e = tape_.entries[index];
    ++played_.calls;
    if (found.size() != e.results.size()) return "gives another number of results than its plain form";
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (std::string reason = memory_.give(e.results[i], found[i]); !reason.empty()) return reason;
    }
    if (observer_ == nullptr) return "";
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (e.results[i].kind == capture::Value::kTensor) found[i] = memory_.given(e.results[i]);
    }
    played_.stopped = !observer_->after({index, op.schema(), given, found});
    return "";
  }

  std::string issue_as_recorded(std::size_t index, const c10::OperatorHandle& op) {
    const auto usual = c10::get_default_dtype();
    if (const std::string* recorded = tape_.setting("default_dtype")) {
      const int number = std::atoi(recorded->c_str());
      if (number == static_cast<int>(c10::ScalarType::Float) || number == static_cast<int>(c10::ScalarType::Double))
        c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(number)));
    }
    memory_.set_as_recorded(true);
    std::string reason =
        issue(index, op, map_.elsewhere ? device_form(tape_.operators[tape_.entries[index].number].name) : nullptr);
    memory_.set_as_recorded(false);
    c10::set_default_dtype(usual);
    return reason;
  }

  void judge() {
    for (std::size_t i = 0; i < tape_.outcomes.size(); ++i) {
      const capture::Outcome& outcome = tape_.outcomes[i];
      const at::Tensor tensor = observe::on_host(memory_.tensor(outcome.value));
      if (observer_ != nullptr) observer_->outcome(i, tensor);
      played_.outcomes.push_back({outcome.kind, outcome.name, outcome.checksum, observe::tape_checksum(tensor),
                                  outcome.flaws, observe::tape_flaws(tensor), ""});
      PlayedOutcome& played = played_.outcomes.back();
      if (played.same() || outcome.sample_every == 0) continue;
      auto [every, sample] = observe::tape_sample(tensor);
      if (every == outcome.sample_every && sample.size() == outcome.sample.size())
        played.got_sample = std::move(sample);
    }
  }

  const Tape& tape_;
  const PlayOptions& options_;
  PlayObserver* const observer_;
  const std::optional<c10::ScalarType> dtype_;
  Played played_;
  std::vector<c10::OperatorHandle> operators_;
  std::vector<at::Generator> generators_;
  std::vector<std::pair<at::Generator, std::string>> defaults_;  // and their states before
  const DeviceMap map_;
  TapeMemory memory_;
  std::optional<IssuedExchanges> exchanges_;  // where all ranks play together
};

}  // namespace

Played play(const Tape& tape, const PlayOptions& options, PlayObserver* observer) {
  // The caller that asks may stand inside a transform of torch.func or a mode, which would wrap what is computed here.
  const c10::impl::ForceDispatchKeyGuard outside(c10::default_included_set, c10::default_excluded_set);
  try {
    return Player(tape, options, observer).run();
  } catch (const std::exception& e) {
    Played failed;
    failed.why_not = e.what();
    return failed;
  }
}

}  // namespace finitude::replay
