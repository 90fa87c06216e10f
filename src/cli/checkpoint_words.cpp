#include "cli/checkpoint_words.h"

#include <cstdio>

#include "show/printable.h"

namespace finitude::cli {

const std::vector<std::int64_t>& whole_shape(const checkpoint::Tensor& tensor) {
  return tensor.full_shape.empty() ? tensor.shape : tensor.full_shape;
}

std::string described(const checkpoint::Checkpoint& checkpoint, const checkpoint::Tensor& tensor) {
  return checkpoint.storages[tensor.storage].type.name + " " + shown_list(whole_shape(tensor));
}

std::string shown_list(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::string shown_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string shown_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string shown(const std::string& text, const Console& console) {
  return show::printable(text, console.screen.unicode);
}

}  // namespace finitude::cli
