#include "pyhost/number_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <cstring>

#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

// Reads the memory directly. item() would call an operator, which the program's modes and our own recorders would see.
// Of a tensor of integers or booleans.
std::optional<double> whole_number(const c10::TensorImpl& tensor, const char* data) {
  const auto read = [data](auto value) {
    std::memcpy(&value, data, sizeof value);
    return static_cast<double>(value);
  };
  const caffe2::TypeMeta type = tensor.dtype();
  if (type == caffe2::TypeMeta::Make<std::int64_t>()) return read(std::int64_t{});
  if (type == caffe2::TypeMeta::Make<std::int32_t>()) return read(std::int32_t{});
  if (type == caffe2::TypeMeta::Make<std::int16_t>()) return read(std::int16_t{});
  if (type == caffe2::TypeMeta::Make<std::int8_t>()) return read(std::int8_t{});
  if (type == caffe2::TypeMeta::Make<std::uint8_t>() || type == caffe2::TypeMeta::Make<bool>())
    return read(std::uint8_t{});
  return std::nullopt;
}

}  // namespace

std::optional<double> number_on_cpu(PyObject* value) {
  observe::TensorView v;
  if (!is_tensor_object(value) || !observe::view_of(*THPVariable_Unpack(value).unsafeGetTensorImpl(), &v) ||
      v.numel != 1)
    return std::nullopt;
  if (v.dtype == sense::DType::kOther) return whole_number(*THPVariable_Unpack(value).unsafeGetTensorImpl(), v.data);
  // The health scan reads each floating point dtype, half precision among them, without a conversion of our own.
  const sense::Health h = observe::full(v);
  return h.nan ? NAN : h.inf() ? INFINITY : h.max;
}

}  // namespace finitude::bindings
