#include "replay/tape_literals_torch.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace finitude::replay {
namespace {

std::string element(const at::Tensor& one) {
  if (one.is_complex()) {
    const auto value = one.item().toComplexDouble();
    return "complex(" + python_number(value.real()) + ", " + python_number(value.imag()) + ")";
  }
  if (one.scalar_type() == at::kBool) return one.item<bool>() ? "True" : "False";
  if (one.is_floating_point()) return python_number(one.to(at::kDouble).item<double>());
  return std::to_string(one.item<std::int64_t>());
}

c10::TypeKind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind();
}

std::string number_of(const c10::IValue& value, c10::TypeKind kind) {
  const std::int64_t number = value.toInt();
  if (kind == c10::TypeKind::ScalarTypeType) return python_dtype(static_cast<c10::ScalarType>(number));
  if (kind == c10::TypeKind::LayoutType && number == static_cast<std::int64_t>(c10::Layout::Strided))
    return "torch.strided";
  if (kind == c10::TypeKind::MemoryFormatType) {
    static constexpr std::array kFormats = {"torch.contiguous_format", "torch.preserve_format", "torch.channels_last",
                                            "torch.channels_last_3d"};
    if (number >= 0 && number < static_cast<std::int64_t>(kFormats.size()))
      return kFormats[static_cast<std::size_t>(number)];
  }
  return std::to_string(number);
}

}  // namespace

std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  std::string written(text, end);
  return written.find_first_of(".e") == std::string::npos ? written + ".0" : written;
}

std::string python_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string python_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "torch.float32";
    case at::kDouble:
      return "torch.float64";
    case at::kHalf:
      return "torch.float16";
    case at::kBFloat16:
      return "torch.bfloat16";
    case at::kLong:
      return "torch.int64";
    case at::kInt:
      return "torch.int32";
    case at::kShort:
      return "torch.int16";
    case at::kChar:
      return "torch.int8";
    case at::kByte:
      return "torch.uint8";
    case at::kBool:
      return "torch.bool";
    case at::kComplexHalf:
      return "torch.complex32";
    case at::kComplexFloat:
      return "torch.complex64";
    case at::kComplexDouble:
      return "torch.complex128";
    case at::kFloat8_e5m2:
      return "torch.float8_e5m2";
    case at::kFloat8_e4m3fn:
      return "torch.float8_e4m3fn";
    default:
      break;
  }
  std::string name = c10::toString(dtype);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return "torch." + name;
}

std::string python_list(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return element(tensor);
  std::string text = "[";
  for (std::int64_t i = 0; i < tensor.size(0); ++i) text += (i == 0 ? "" : ", ") + python_list(tensor.select(0, i));
  return text + "]";
}

std::string python_scalar(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isNone()) return "None";
  if (value.isInt()) return number_of(value, kind_of(argument));
  if (value.isDouble()) return python_number(value.toDouble());
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isString()) return python_text(value.toStringRef());
  if (value.isDevice()) return "torch.device(" + python_text(value.toDevice().str()) + ")";
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return "complex(" + python_number(number.real()) + ", " + python_number(number.imag()) + ")";
  }
  if (!value.isList()) return "None";
  std::string text = "[";
  for (const c10::IValue& item : value.toListRef())
    text += (text.size() == 1 ? "" : ", ") + python_scalar(item, argument);
  return text + "]";
}

std::string python_name(const std::string& name) {
  for (const char* word : {"from",  "lambda",  "in",   "is",      "not",    "and",     "or",       "if",    "else",
                           "for",   "while",   "def",  "class",   "return", "import",  "global",   "with",  "as",
                           "torch", "op",      "inf",  "nan",     "result", "results", "load",     "saved", "bad",
                           "json",  "pathlib", "flat", "outputs", "leaf",   "leaves",  "gradients"}) {
    if (name == word) return name + "_";
  }
  return name;
}

}  // namespace finitude::replay
