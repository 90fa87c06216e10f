#include "replay/tape_perturb_torch.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <array>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "replay/decompose_torch.h"
#include "replay/tape_calls.h"
#include "replay/tape_retype_torch.h"

namespace finitude::replay {
namespace {

using Stack = std::vector<c10::IValue>;
using OfTensor = std::function<at::Tensor(const at::Tensor&)>;

bool is_plain_tensor(const at::Tensor& t) { return t.defined() && t.layout() == c10::kStrided; }
bool has_real_numbers(const at::Tensor& t) { return is_plain_tensor(t) && t.is_floating_point(); }
bool is_program_number(const at::Tensor& t) { return t.unsafeGetTensorImpl()->is_wrapped_number(); }

bool is_written_argument(const c10::Argument& argument) {
  // The kernels of batch norm write the running statistics; their schemas do not say so.
  return argument.name() == "running_mean" || argument.name() == "running_var" ||
         (argument.alias_info() != nullptr && argument.alias_info()->isWrite());
}

c10::IValue each_mapped(const c10::IValue& value, const OfTensor& use) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(use(value.toTensor())) : value;
  if (!value.isList()) return value;
  c10::impl::GenericList list(value.toList().elementType());
  for (const c10::IValue& item : value.toListRef()) list.push_back(each_mapped(item, use));
  return list;
}

void each_tensor_of(const c10::IValue& value, const std::function<void(const at::Tensor&)>& use) {
  if (value.isTensor() && value.toTensor().defined()) use(value.toTensor());
  if (!value.isList()) return;
  for (const c10::IValue& item : value.toListRef()) each_tensor_of(item, use);
}

// What the operator did to copies of its arguments, in the arguments themselves.
void write_back(const c10::IValue& copy, const c10::IValue& original) {
  if (copy.isTensor() && original.isTensor() && original.toTensor().defined())
    original.toTensor().copy_(copy.toTensor());
  if (!copy.isList()) return;
  for (std::size_t i = 0; i < copy.toListRef().size(); ++i) write_back(copy.toListRef()[i], original.toListRef()[i]);
}

double step_at_one(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return std::numeric_limits<double>::epsilon();
    case c10::ScalarType::Float:
      return std::numeric_limits<float>::epsilon();
    case c10::ScalarType::Half:
      return 0x1p-10;
    case c10::ScalarType::BFloat16:
      return 0x1p-7;
    default:
      return 0;
  }
}

at::Tensor noisy(const at::Tensor& t, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor steps = at::randint(-1, 2, t.sizes(), generator, at::dtype(at::kDouble)).to(t.device());
  const at::Tensor moved = t.to(at::kDouble).mul(steps.mul(step_at_one(t.scalar_type())).add(1)).to(t.scalar_type());
  return at::where(at::isfinite(moved), moved, t);  // a finite number stays one
}

// The same values; by the last two dimensions, or the channels, in another order of memory.
at::Tensor laid_out_otherwise(const at::Tensor& t) {
  if (!is_plain_tensor(t) || t.numel() < 2 || is_program_number(t)) return t;
  if (!t.is_contiguous()) return t.contiguous();
  if (t.dim() == 4) return t.contiguous(at::MemoryFormat::ChannelsLast);
  if (t.dim() == 5) return t.contiguous(at::MemoryFormat::ChannelsLast3d);
  if (t.dim() > 1) return t.transpose(-1, -2).clone(at::MemoryFormat::Contiguous).transpose(-1, -2);
  at::Tensor apart = at::zeros({t.numel() * 2}, t.options()).slice(0, 0, t.numel() * 2, 2);
  return apart.copy_(t);
}

// A dropout of 0 draws nothing.
bool draws_numbers(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto& known = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size() && i < known.size(); ++i) {
    if (known[i].name() == "dropout_p" && arguments[i].isDouble() && arguments[i].toDouble() == 0) return false;
  }
  return true;
}

class DeterministicKernels {
 public:
  explicit DeterministicKernels(bool on)
      : before_(at::globalContext().deterministicAlgorithms()),
        warned_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    if (on) at::globalContext().setDeterministicAlgorithms(true, false);
  }
  ~DeterministicKernels() { at::globalContext().setDeterministicAlgorithms(before_, warned_only_); }
  DeterministicKernels(const DeterministicKernels&) = delete;
  DeterministicKernels& operator=(const DeterministicKernels&) = delete;

 private:
  const bool before_, warned_only_;
};

std::string one_line(const std::string& text) { return text.substr(0, std::min<std::size_t>(text.find('\n'), 120)); }

}  // namespace

std::optional<Perturb> perturb_named(std::string_view word) {
  constexpr std::array<std::pair<std::string_view, Perturb>, 6> kKnown{{{"noise", Perturb::kNoise},
                                                                        {"float64", Perturb::kFloat64},
                                                                        {"float32", Perturb::kFloat32},
                                                                        {"layout", Perturb::kLayout},
                                                                        {"unfused", Perturb::kUnfused},
                                                                        {"deterministic", Perturb::kDeterministic}}};
  for (const auto& [name, how] : kKnown) {
    if (name == word) return how;
  }
  return std::nullopt;
}

PerturbedCalls::PerturbedCalls(const capture::Tape& tape, Perturb how, const std::vector<std::size_t>& which)
    : KeepOutcomes(tape), tape_(tape), how_(how), which_(tape.entries.size(), false) {
  for (const std::size_t index : which) which_.at(index) = true;
}

void PerturbedCalls::count(std::size_t index) { ++done_[call_name(tape_, index)]; }

void PerturbedCalls::leave(std::size_t index, const std::string& why) {
  as_usual_.try_emplace(call_name(tape_, index), one_line(why));
}

bool PerturbedCalls::gives_view(std::size_t index, const c10::FunctionSchema& schema) const {
  const capture::Entry& entry = tape_.entries[index];
  std::set<capture::StorageId> read, written;
  for (std::size_t i = 0; i < entry.args.size() && i < schema.arguments().size(); ++i) {
    capture::for_each_tensor(entry.args[i], [&](const capture::TensorRef& t) {
      if (t.storage != capture::kNoStorage)
        (is_written_argument(schema.arguments()[i]) ? written : read).insert(t.storage);
    });
  }
  bool found = false;
  capture::for_each_tensor(entry.results, [&](const capture::TensorRef& t) {
    found = found || (read.contains(t.storage) && !written.contains(t.storage));
  });
  return found;
}

bool PerturbedCalls::fits(std::size_t index, const std::vector<c10::IValue>& results) const {
  const capture::Entry& entry = tape_.entries[index];
  if (results.size() != entry.results.size()) return false;
  const std::function<bool(const capture::Value&, const c10::IValue&)> one = [&](const capture::Value& then,
                                                                                 const c10::IValue& now) {
    if (then.kind == capture::Value::kTensor)
      return now.isTensor() && is_plain_tensor(now.toTensor()) &&
             now.toTensor().sizes() == c10::IntArrayRef(then.tensors.at(0).sizes);
    if (then.kind == capture::Value::kSparse) return false;
    if (then.kind != capture::Value::kList) return true;
    if (!now.isList() || now.toListRef().size() != then.items.size()) return false;
    for (std::size_t i = 0; i < then.items.size(); ++i) {
      if (!one(then.items[i], now.toListRef()[i])) return false;
    }
    return true;
  };
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!one(entry.results[i], results[i])) return false;
  }
  return true;
}

void PerturbedCalls::change(std::size_t index, const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) {
  if (how_ != Perturb::kNoise || !is_meant(index)) return;
  if (gives_view(index, schema)) return leave(index, "gives a view of what it reads");
  std::uint64_t seed = index * 4096;
  bool any = false;
  const OfTensor change_one = [&](const at::Tensor& t) {
    ++seed;
    if (!has_real_numbers(t) || is_program_number(t) || step_at_one(t.scalar_type()) == 0 || t.numel() == 0) return t;
    any = true;
    return noisy(t, seed);
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue changed = each_mapped(arguments[i], change_one);
    if (is_written_argument(schema.arguments()[i]))
      write_back(changed, arguments[i]);
    else
      arguments[i] = changed;
  }
  any ? count(index) : leave(index, "reads no floating numbers");
}

std::optional<std::vector<c10::IValue>> PerturbedCalls::computed(const PlayedCall& call) {
  if (how_ == Perturb::kNoise || how_ == Perturb::kUnfused || !is_meant(call.index)) return std::nullopt;
  const auto stay = [&](const std::string& why) {
    leave(call.index, why);
    return std::nullopt;
  };
  const auto op = c10::Dispatcher::singleton().findSchema({call.schema.name(), call.schema.overload_name()});
  if (!op) return stay("is not registered here");
  if (draws_numbers(*op, call.arguments)) return stay("draws random numbers");
  if (gives_view(call.index, call.schema)) return stay("gives a view of what it reads");
  const auto target = how_ == Perturb::kFloat64 ? c10::ScalarType::Double : c10::ScalarType::Float;
  const bool converts = how_ == Perturb::kFloat64 || how_ == Perturb::kFloat32;
  bool any = how_ == Perturb::kDeterministic, all_dense = true;
  const OfTensor change_one = [&](const at::Tensor& t) {
    if (converts && has_real_numbers(t) && t.scalar_type() != target) {
      any = any || !is_program_number(t);
      at::Tensor now = t.to(target);
      if (is_program_number(t)) now.unsafeGetTensorImpl()->set_wrapped_number(true);
      return now;
    }
    if (how_ != Perturb::kLayout) return t;
    const at::Tensor now = laid_out_otherwise(t);
    any = any || now.strides() != t.strides();
    return now;
  };
  Stack stack;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::Argument& argument = call.schema.arguments()[i];
    const c10::IValue& given = call.arguments[i];
    each_tensor_of(given, [&](const at::Tensor& t) { all_dense = all_dense && is_plain_tensor(t); });
    if (!all_dense) return stay("reads a sparse tensor");
    const bool is_number = converts && given.isInt() && is_dtype(argument) &&
                           c10::isFloatingType(static_cast<c10::ScalarType>(given.toInt()));
    if (is_number)
      stack.emplace_back(static_cast<std::int64_t>(target));
    else if (is_written_argument(argument) && how_ != Perturb::kLayout)
      stack.push_back(each_mapped(given, [&](const at::Tensor& t) { return change_one(t).clone(); }));
    else if (is_written_argument(argument))
      stack.push_back(each_mapped(given, [](const at::Tensor& t) { return t.clone(); }));
    else
      stack.push_back(each_mapped(given, change_one));
  }
  if (!any) return stay(converts ? "reads no numbers of another dtype" : "reads nothing that has another layout");
  const Stack copies = stack;
  try {
    const DeterministicKernels kernels(how_ == Perturb::kDeterministic);
    op->callBoxed(&stack);
  } catch (const c10::Error& error) {
    return stay(error.what_without_backtrace());
  }
  if (!fits(call.index, stack)) return stay("gives results of another form");
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (is_written_argument(call.schema.arguments()[i])) write_back(copies[i], call.arguments[i]);
  }
  count(call.index);
  return stack;
}

bool PerturbedCalls::after(const PlayedCall& call) {
  if (how_ != Perturb::kUnfused || !is_meant(call.index)) return true;
  std::vector<at::Tensor> parts;
  try {
    parts = by_parts(call.schema.name(), call.schema, call.arguments.vec());
  } catch (const c10::Error& error) {
    leave(call.index, error.what_without_backtrace());
    return true;
  }
  if (parts.empty()) return true;
  // A gradient that nobody asked for is undefined.
  const auto is_given = [&](std::size_t i) {
    return parts[i].defined() && call.results[i].isTensor() && call.results[i].toTensor().defined();
  };
  bool fit = parts.size() <= call.results.size();
  for (std::size_t i = 0; fit && i < parts.size(); ++i)
    fit = !is_given(i) || call.results[i].toTensor().sizes() == parts[i].sizes();
  if (!fit) {
    leave(call.index, "its plain form gives results of another form");
    return true;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (is_given(i)) call.results[i].toTensor().copy_(parts[i]);
  }
  count(call.index);
  return true;
}

}  // namespace finitude::replay
