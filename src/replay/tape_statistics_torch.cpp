#include "replay/tape_statistics_torch.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>

#include <cstdio>

#include "observe/device_memory_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::replay {
namespace {

void add(const std::string& name, const c10::IValue& value, std::vector<NamedTensor>& found) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) found.push_back({name, value.toTensor()});
  } else if (value.isList()) {
    const auto items = value.toListRef();
    for (std::size_t i = 0; i < items.size(); ++i) add(name + "." + std::to_string(i), items[i], found);
  }
}

std::string number(const char* name, double value) {
  char text[48];
  std::snprintf(text, sizeof text, "  %s %.6g", name, value);
  return text;
}

}  // namespace

sense::Health health_of(const at::Tensor& given) {
  const at::Tensor tensor = observe::on_host(given);
  if (!tensor.defined()) return {};
  if (tensor.layout() == c10::kSparse && tensor.is_cpu())
    return health_of(static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->values());
  observe::TensorView view;
  if (tensor.layout() != c10::kStrided || !observe::view_of(*tensor.unsafeGetTensorImpl(), &view)) return {};
  return view.dtype == sense::DType::kOther ? sense::Health{} : observe::full(view);
}

std::string form_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const char* name = c10::toString(tensor.scalar_type());
  for (const auto& [legacy, usual] :
       {std::pair("Float", "float32"), std::pair("Double", "float64"), std::pair("Half", "float16"),
        std::pair("BFloat16", "bfloat16"), std::pair("Long", "int64"), std::pair("Int", "int32"),
        std::pair("Short", "int16"), std::pair("Char", "int8"), std::pair("Byte", "uint8"), std::pair("Bool", "bool"),
        std::pair("ComplexFloat", "complex64"), std::pair("ComplexDouble", "complex128"),
        std::pair("ComplexHalf", "complex32")}) {
    if (std::string_view(name) == legacy) {
      name = usual;
      break;
    }
  }
  std::string text = std::string(name) + " [";
  for (std::int64_t d = 0; d < tensor.dim(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(tensor.size(d));
  text += "]";
  return tensor.layout() == c10::kSparse ? text + " sparse" : text;
}

std::string describe(const at::Tensor& tensor) {
  std::string text = form_of(tensor);
  const sense::Health health = health_of(tensor);
  for (const auto& [count, what] :
       {std::pair(health.nan, "NaN"), std::pair(health.pos_inf, "+Inf"), std::pair(health.neg_inf, "-Inf")}) {
    if (count != 0) text += "  " + std::to_string(count) + " " + what;
  }
  if (health.finite() == 0) return text;
  if (health.zero == health.finite()) return text + "  all zero";
  text += number("min", health.min) + number("max", health.max) + number("absmax", health.absmax);
  return health.zero == 0 ? text : text + "  " + std::to_string(health.zero) + " zeros";
}

std::vector<NamedTensor> tensors_of(const std::vector<c10::Argument>& schema, c10::ArrayRef<c10::IValue> values) {
  std::vector<NamedTensor> found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::string name = i < schema.size() ? schema[i].name() : "";
    if (name.empty()) name = values.size() == 1 ? "result" : "result" + std::to_string(i);
    add(name, values[i], found);
  }
  return found;
}

std::vector<NamedTensor> written_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<NamedTensor> found;
  const auto& known = schema.arguments();
  for (std::size_t i = 0; i < arguments.size() && i < known.size(); ++i) {
    const auto* alias = known[i].alias_info();
    // The kernels of batch norm write the running statistics; their schemas do not say so.
    const bool statistic = known[i].name() == "running_mean" || known[i].name() == "running_var";
    if (statistic || (alias != nullptr && alias->isWrite())) add(known[i].name(), arguments[i], found);
  }
  return found;
}

at::Tensor with_arithmetic(const at::Tensor& tensor) {
  return c10::isFloat8Type(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() ? tensor.clone() : observe::on_host(tensor);
}

}  // namespace finitude::replay
