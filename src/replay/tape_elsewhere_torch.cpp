#include "replay/tape_elsewhere_torch.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::Tape;
using Results = torch::jit::Stack;

at::Tensor given(const PlainCall& call, std::string_view name) {
  const c10::IValue& value = call.value(name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

std::optional<at::Tensor> maybe(const PlainCall& call, std::string_view name) {
  const at::Tensor t = given(call, name);
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

c10::ScalarType dtype_of(const PlainCall& call, std::string_view name) {
  return static_cast<c10::ScalarType>(call.integer(name));
}

// Of half precision CUDA answers in float32 where it is asked to; kernels of the CPU do not.
template <at::Tensor (*Softmax)(const at::Tensor&, std::int64_t, bool)>
Results softmax(const PlainCall& call) {
  if (!call.flag("half_to_float")) return {};
  return {Softmax(given(call, "self").to(at::kFloat), call.integer("dim"), false)};
}
template <at::Tensor (*Backward)(const at::Tensor&, const at::Tensor&, std::int64_t, at::ScalarType)>
Results softmax_backward(const PlainCall& call) {
  const at::Tensor grad = given(call, "grad_output");
  const c10::ScalarType wanted = dtype_of(call, "input_dtype");
  if (grad.scalar_type() == wanted) return {};
  return {Backward(grad, given(call, "output"), call.integer("dim"), grad.scalar_type()).to(wanted)};
}

Results batch_norm(const PlainCall& call) {
  auto [out, mean, invstd] = at::native_batch_norm(
      given(call, "input"), maybe(call, "weight"), maybe(call, "bias"), maybe(call, "running_mean"),
      maybe(call, "running_var"), call.flag("training"), call.real("exponential_average_factor"), call.real("epsilon"));
  return {out, mean, invstd, at::empty({0}, out.options().dtype(at::kByte))};
}

Results batch_norm_backward(const PlainCall& call) {
  auto [input, weight, bias] =
      at::native_batch_norm_backward(given(call, "grad_output"), given(call, "input"), maybe(call, "weight"),
                                     maybe(call, "running_mean"), maybe(call, "running_var"), maybe(call, "save_mean"),
                                     maybe(call, "save_var"), true, call.real("epsilon"), {true, true, true});
  return {input, weight, bias};
}

Results convolution(const PlainCall& call) {
  return {at::convolution(given(call, "self"), given(call, "weight"), {}, call.integers("stride"),
                          call.integers("padding"), call.integers("dilation"), false, {0}, call.integer("groups"))};
}

Results transposed_convolution(const PlainCall& call) {
  return {at::convolution(given(call, "self"), given(call, "weight"), {}, call.integers("stride"),
                          call.integers("padding"), call.integers("dilation"), true, call.integers("output_padding"),
                          call.integer("groups"))};
}

Results masked_scale(const PlainCall& call) {
  const at::Tensor x = call.tensor("self");
  return {x * given(call, "mask").to(x.scalar_type()) * call.real("scale")};
}

// y = x r w with r the reciprocal of the root mean square: r (g w - y' mean(g w y')) with y' = x r.
Results rms_norm_backward(const PlainCall& call) {
  const at::Tensor x = call.tensor("input"), r = call.tensor("rstd"), weight = call.tensor("weight");
  const at::Tensor grad = call.tensor("grad_out"), y = x * r, g = weight.defined() ? grad * weight : grad;
  std::vector<std::int64_t> dims, others;
  const auto count = static_cast<std::int64_t>(call.integers("normalized_shape").size());
  for (std::int64_t d = 0; d < x.dim(); ++d) (d >= x.dim() - count ? dims : others).push_back(d);
  const at::Tensor product = grad * y;
  return {r * (g - y * (g * y).mean(dims, true)), !weight.defined() ? at::Tensor()
                                                  : others.empty()  ? product
                                                                    : product.sum(others)};
}

Results unpinned(const PlainCall& call) { return {given(call, "self").clone()}; }
Results no_dropout_state(const PlainCall&) { return {at::empty({0}, at::TensorOptions(at::kByte))}; }

bool covers(const Entry& fill, const capture::TensorRef& ref) {
  const auto item = static_cast<std::int64_t>(std::max<std::size_t>(capture::item_bytes(ref.dtype), 1));
  std::int64_t last = ref.offset;
  for (std::size_t d = 0; d < ref.sizes.size(); ++d) {
    if (ref.sizes[d] == 0) return true;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(ref.sizes[d] - 1, ref.strides[d], &reach) || __builtin_add_overflow(last, reach, &last))
      return false;
  }
  std::int64_t begin = 0, end = 0;
  if (__builtin_add_overflow(last, std::int64_t{1}, &last) || __builtin_mul_overflow(last, item, &end) ||
      __builtin_mul_overflow(ref.offset, item, &begin)) {
    return false;
  }
  return fill.number == ref.storage && fill.offset <= static_cast<std::uint64_t>(begin) &&
         fill.bytes.size() >= static_cast<std::uint64_t>(end) - fill.offset;
}

}  // namespace

bool results_are_recorded(const Tape& tape, std::size_t index) {
  std::size_t end = index + 1;
  while (end < tape.entries.size() && tape.entries[end].kind == Entry::kFill) ++end;
  if (end == index + 1) return false;
  bool all = true, any = false;
  capture::for_each_tensor(tape.entries[index].results, [&](const capture::TensorRef& ref) {
    any = true;
    all = all && std::any_of(tape.entries.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                             tape.entries.begin() + static_cast<std::ptrdiff_t>(end),
                             [&](const Entry& fill) { return covers(fill, ref); });
  });
  return any && all;
}

bool is_here(const c10::OperatorHandle& op, const DeviceMap& map) {
  using c10::DispatchKey;
  const bool on_cpu = map.target == "cpu";
  for (const DispatchKey key :
       {on_cpu ? DispatchKey::CPU : DispatchKey::CUDA, on_cpu ? DispatchKey::SparseCPU : DispatchKey::SparseCUDA}) {
    if (op.hasComputedKernelForDispatchKey(key)) return true;
  }
  return false;
}

DeviceForm device_form(std::string_view op) {
  static const std::map<std::string_view, DeviceForm> known{
      {"aten::_softmax", softmax<at::_softmax>},
      {"aten::_log_softmax", softmax<at::_log_softmax>},
      {"aten::_softmax_backward_data", softmax_backward<at::_softmax_backward_data>},
      {"aten::_log_softmax_backward_data", softmax_backward<at::_log_softmax_backward_data>},
      {"aten::cudnn_batch_norm", batch_norm},
      {"aten::cudnn_batch_norm_backward", batch_norm_backward},
      {"aten::cudnn_convolution", convolution},
      {"aten::cudnn_convolution_transpose", transposed_convolution},
      {"aten::_masked_scale", masked_scale},
      {"aten::_fused_rms_norm_backward", rms_norm_backward},
      {"aten::_pin_memory", unpinned},
      {"aten::_cudnn_init_dropout_state", no_dropout_state},
  };
  if (const auto found = known.find(op); found != known.end()) return found->second;
  const DeviceForm attention = attention_form(op);
  return attention != nullptr ? attention : recurrent_form(op);
}

std::vector<std::string> only_there(const Tape& tape, const DeviceMap& map,
                                    const std::vector<c10::OperatorHandle>& operators) {
  std::vector<std::string> found;
  if (map.target != "cpu") return found;  // what a GPU does not have is computed on the CPU
  std::string type(capture::device_type(map.recorded));
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::toupper(c); });
  std::vector<bool> reported(operators.size(), false);
  for (std::size_t i = 0; i < tape.entries.size(); ++i) {
    const Entry& e = tape.entries[i];
    if (e.kind != Entry::kCall || e.number >= operators.size() || reported[e.number]) continue;
    if (is_here(operators[e.number], map) || device_form(tape.operators[e.number].name) != nullptr ||
        results_are_recorded(tape, i))
      continue;
    reported[e.number] = true;
    found.push_back(tape.operators[e.number].name + " (exists on " + type + " only)");
  }
  return found;
}

}  // namespace finitude::replay
