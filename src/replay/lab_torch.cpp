#include "replay/lab_torch.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "observe/no_warnings_torch.h"
#include "observe/tensor_view_torch.h"
#include "record/exchange.h"
#include "replay/decompose_torch.h"
#include "replay/tape_indices_torch.h"

namespace finitude::replay {
namespace {

c10::ScalarType scalar_type(sense::DType dtype) {
  switch (dtype) {
    case sense::DType::kFloat64:
      return at::kDouble;
    case sense::DType::kFloat16:
      return at::kHalf;
    case sense::DType::kBFloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

// A number of the program (`loss * 100`) has no say in the dtype of a result; a tensor without dimensions would.
at::Tensor as_number(at::Tensor t, const at::Tensor& original) {
  if (original.unsafeGetTensorImpl()->is_wrapped_number() && t.dim() == 0)
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

at::Tensor copy_of(const at::Tensor& t) { return as_number(t.clone(), t); }

at::Tensor change(const at::Tensor& original, const std::string& arg, const Variant& v) {
  if (!original.defined()) return original;
  at::Tensor t = original.clone();
  const bool floating = t.is_floating_point() || t.is_complex();
  // Lengths and counts are integers as a rule: their zeros are replaced like any other.
  const bool whole = at::isIntegralType(t.scalar_type(), false) && std::isfinite(v.replace_from);
  if ((floating || whole) && arg == v.replace_arg && !arg.empty()) {
    const at::Tensor from = std::isnan(v.replace_from) ? t.isnan() : t.eq(v.replace_from);
    t = t.masked_fill(from, v.replace_to);
  }
  if (v.compute_dtype && t.is_floating_point()) t = t.to(scalar_type(*v.compute_dtype));
  if (floating && arg == v.scale_arg && !arg.empty()) t = t * v.scale;
  if (floating && arg == v.add_arg && !arg.empty()) t = t + v.add;
  if (floating && arg == v.clamp_arg && !arg.empty() && (v.clamp_min || v.clamp_max)) {
    t = t.clamp(v.clamp_min ? std::optional<c10::Scalar>(*v.clamp_min) : std::nullopt,
                v.clamp_max ? std::optional<c10::Scalar>(*v.clamp_max) : std::nullopt);
  }
  return as_number(std::move(t), original);
}

at::Tensor drop_rows(const at::Tensor& t, std::int64_t rows, const std::vector<std::int64_t>& drop) {
  if (!t.defined() || t.dim() == 0 || t.size(0) != rows) return t;
  std::vector<std::int64_t> keep;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (std::find(drop.begin(), drop.end(), i) == drop.end()) keep.push_back(i);
  }
  return t.index_select(0, at::tensor(keep, at::kLong));
}

torch::jit::Stack copies(const std::vector<c10::IValue>& args) {
  torch::jit::Stack stack;
  for (const c10::IValue& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) {
      stack.emplace_back(copy_of(arg.toTensor()));
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : arg.toTensorVector()) list.push_back(t.defined() ? copy_of(t) : t);
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(arg);
    }
  }
  return stack;
}

// Below autograd and autocast, out of torch.func and modes, with no observer and no warnings: it may warn where the
// step did not, of a variance of one value.
struct Undisturbed {
  const c10::impl::ForceDispatchKeyGuard outside{c10::default_included_set, c10::default_excluded_set};
  at::DisableRecordFunctionGuard unobserved;
  const observe::NoWarnings no_warnings;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::AutoDispatchBelowADInplaceOrView below;
};

// Where both are finite they are the same but for rounding. What a plain form says of the rest counts only then.
bool stand_for(const at::Tensor& plain, const at::Tensor& fused) {
  if (!fused.defined()) return true;  // a gradient that nobody asked for
  if (plain.sizes() != fused.sizes() || plain.scalar_type() != fused.scalar_type()) return false;
  const at::Tensor both = at::isfinite(plain).logical_and(at::isfinite(fused));
  const at::Tensor a = at::where(both, plain, 0).to(at::kDouble), b = at::where(both, fused, 0).to(at::kDouble);
  if (a.numel() == 0) return true;
  const double rounding = fused.scalar_type() == at::kDouble ? 1e-9 : fused.scalar_type() == at::kFloat ? 1e-3 : 5e-2;
  return (a - b).abs().max().item<double>() <= rounding * std::max(b.abs().max().item<double>(), 1e-30);
}

constexpr std::int64_t kMostCounted = std::int64_t{1} << 26;  // elements of all operands: a fraction of a second

}  // namespace

std::vector<Spread> TorchLab::spreads(record::OpId op) {
  std::vector<Spread> found;
  const observe::CapturedCall* call = tracer_.captured(op);
  if (call == nullptr) return found;
  try {
    const Undisturbed undisturbed;
    const auto handle = c10::Dispatcher::singleton().findSchema({call->op, call->overload});
    if (!handle) return found;
    const auto& arguments = handle->schema().arguments();
    std::int64_t left = kMostCounted;
    const auto count = [&](const std::string& name, const at::Tensor& t) {
      if (!t.defined() || (left -= t.numel()) < 0) return;
      const at::Tensor dense = t.cpu().contiguous();
      observe::TensorView view;
      if (!observe::view_of(*dense.unsafeGetTensorImpl(), &view) || view.dtype == sense::DType::kOther) return;
      found.push_back(
          {name, t.sizes().vec(), sense::count_exponents(view.data, static_cast<std::size_t>(view.numel), view.dtype)});
    };
    for (std::size_t i = 0; i < call->args.size(); ++i) {
      const std::string name = i < arguments.size() ? arguments[i].name() : "";
      if (call->args[i].isTensor()) {
        count(name, call->args[i].toTensor());
      } else if (call->args[i].isTensorList()) {
        for (const at::Tensor& t : call->args[i].toTensorVector()) count(name, t);
      }
    }
    if (left < 0) found.clear();
  } catch (const std::exception&) {
    found.clear();  // the report does without
  }
  return found;
}

std::optional<Wrapped> TorchLab::wrapped(record::OpId op) {
  const observe::CapturedCall* call = tracer_.captured(op);
  if (call == nullptr || record::exchanges_values(call->op)) return std::nullopt;
  try {
    const Undisturbed undisturbed;
    const auto handle = c10::Dispatcher::singleton().findSchema({call->op, call->overload});
    if (!handle || call->op == "aten::copy_") return std::nullopt;
    torch::jit::Stack as_it_was = copies(call->args), in_float64;
    std::int64_t left = kMostCounted;
    for (const c10::IValue& arg : copies(call->args)) {
      const bool tensor = arg.isTensor() && arg.toTensor().defined();
      if (tensor) left -= arg.toTensor().numel();
      // A list of tensors are indices, which have to stay integers.
      const bool integers = tensor && at::isIntegralType(arg.toTensor().scalar_type(), false);
      in_float64.push_back(integers ? as_number(arg.toTensor().to(at::kDouble), arg.toTensor()) : arg);
    }
    if (left < 0) return std::nullopt;
    handle->callBoxed(&as_it_was);
    if (as_it_was.empty() || !as_it_was[0].isTensor()) return std::nullopt;
    const at::Tensor made = as_it_was[0].toTensor();
    if (!at::isIntegralType(made.scalar_type(), false) || made.numel() == 0) return std::nullopt;
    at::Tensor exact;
    if (call->op == "aten::_to_copy") {  // to fewer bits: what it was given is what it should be
      exact = in_float64[0].toTensor();
    } else {
      handle->callBoxed(&in_float64);
      exact = in_float64.at(0).toTensor();
    }
    if (!exact.is_floating_point() || exact.sizes() != made.sizes()) return std::nullopt;
    // Beyond 2^53 float64 rounds, which is not meant.
    const at::Tensor apart = (made.to(at::kDouble) - exact).abs();
    const auto values = apart.gt(exact.abs() * 1e-9 + 0.5).sum().item<std::int64_t>();
    if (values == 0) return std::nullopt;
    Wrapped found;
    found.values = static_cast<std::uint64_t>(values);
    found.smallest = exact.min().item<double>();
    found.largest = exact.max().item<double>();
    const int bits = static_cast<int>(8 * made.element_size());
    const bool is_signed = c10::isSignedType(made.scalar_type());
    found.low = is_signed ? -std::ldexp(1.0, bits - 1) : 0;
    found.high = std::ldexp(1.0, is_signed ? bits - 1 : bits) - 1;
    found.dtype = (is_signed ? "int" : "uint") + std::to_string(bits);
    // Another difference, as of a division that rounds, is none of the range.
    if (found.smallest >= found.low && found.largest <= found.high) return std::nullopt;
    return found;
  } catch (const std::exception&) {
    return std::nullopt;  // the report does without
  }
}

std::optional<Integers> TorchLab::whole_numbers(record::OpId op, const std::string& arg) {
  const observe::CapturedCall* call = tracer_.captured(op);
  if (call == nullptr) return std::nullopt;
  try {
    const Undisturbed undisturbed;
    const auto handle = c10::Dispatcher::singleton().findSchema({call->op, call->overload});
    if (!handle) return std::nullopt;
    const auto place = handle->schema().argumentIndexWithName(arg);
    if (!place || static_cast<std::size_t>(*place) >= call->args.size()) return std::nullopt;
    const c10::IValue& value = call->args[static_cast<std::size_t>(*place)];
    if (value.isIntList()) {
      Integers found;
      found.values = value.toIntVector();
      found.shape = {static_cast<std::int64_t>(found.values.size())};
      return found;
    }
    if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
    const at::Tensor& t = value.toTensor();
    if (!at::isIntegralType(t.scalar_type(), false) || t.numel() > kMostCounted) return std::nullopt;
    const at::Tensor dense = t.to(at::kCPU, at::kLong).contiguous();
    const auto* first = dense.const_data_ptr<std::int64_t>();
    return Integers{t.sizes().vec(), {first, first + dense.numel()}};
  } catch (const std::exception&) {
    return std::nullopt;  // the report does without
  }
}

Trial TorchLab::run(record::OpId op, const Variant& variant) {
  Trial trial;
  const observe::CapturedCall* call = tracer_.captured(op);
  if (call == nullptr) {
    trial.why_not = "its inputs were not captured";
    return trial;
  }
  if (several_ranks_ ? record::may_exchange_values(call->op) : record::exchanges_values(call->op)) {
    trial.why_not = "it may exchange values with other processes";
    return trial;
  }
  try {
    const Undisturbed undisturbed;
    const auto handle = c10::Dispatcher::singleton().findSchema({call->op, call->overload});
    if (!handle) {
      trial.why_not = "the operator is not registered";
      return trial;
    }
    const auto look = [&](const at::Tensor& t) {
      observe::TensorView v;
      if (t.defined() && observe::view_of(*t.unsafeGetTensorImpl(), &v)) trial.outputs.push_back(observe::full(v));
    };
    if (variant.by_parts) {
      const std::vector<at::Tensor> plain = by_parts(call->op, handle->schema(), call->args);
      if (plain.empty()) {
        trial.why_not = "no plain form of it is known";
        return trial;
      }
      torch::jit::Stack fused = copies(call->args);
      handle->callBoxed(&fused);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        TORCH_CHECK(i < fused.size() && fused[i].isTensor() && stand_for(plain[i], fused[i].toTensor()),
                    "its plain form comes out with other values");
        look(plain[i]);
      }
      trial.ran = true;
      return trial;
    }
    const auto& arguments = handle->schema().arguments();
    std::int64_t rows = -1;
    for (const auto& arg : call->args) {
      if (!arg.isTensor() || !arg.toTensor().defined() || arg.toTensor().dim() == 0) continue;
      const std::int64_t size = arg.toTensor().size(0);
      if (rows < 0 || size == variant.rows) rows = size;
    }
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < call->args.size(); ++i) {
      const std::string name = i < arguments.size() ? arguments[i].name() : "";
      c10::IValue value = call->args[i];
      const auto one = [&](const at::Tensor& t) {
        at::Tensor changed = change(t, name, variant);
        return variant.drop_rows.empty() ? changed : drop_rows(changed, rows, variant.drop_rows);
      };
      if (value.isTensor()) {
        value = one(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : value.toTensorVector()) list.push_back(one(t));
        value = list;
      } else if (variant.compute_dtype && name == "dtype" && value.isInt()) {
        // Keep an explicit floating target dtype from undoing the experiment.
        if (c10::isFloatingType(static_cast<c10::ScalarType>(value.toInt()))) {
          value = static_cast<std::int64_t>(scalar_type(*variant.compute_dtype));
        }
      } else if (value.isScalar() && !variant.clamp_arg.empty() && name == variant.clamp_arg) {
        double number = value.toScalar().toDouble();
        if (variant.clamp_min) number = std::max(number, *variant.clamp_min);
        if (variant.clamp_max) number = std::min(number, *variant.clamp_max);
        value = c10::Scalar(number);
      }
      stack.push_back(std::move(value));
    }
    check_trusted_indices(handle->schema(), stack);
    handle->callBoxed(&stack);
    for (const c10::IValue& v : stack) {
      if (v.isTensor())
        look(v.toTensor());
      else if (v.isTensorList()) {
        for (const at::Tensor& t : v.toTensorVector()) look(t);
      }
    }
    trial.ran = true;
  } catch (const std::exception& e) {
    trial.why_not = std::string(e.what()).substr(0, 200);
  } catch (...) {
    trial.why_not = "an unknown error";
  }
  return trial;
}

}  // namespace finitude::replay
