#include "show/read.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace finitude::show {
namespace {

constexpr std::size_t kShownBytes = 4096;

}  // namespace

const Json& at(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

const Json& list(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const Json& value = at(object, key);
  return value.is_array() ? value : kEmpty;
}

std::string text(const Json& object, const char* key) {
  const Json& value = at(object, key);
  if (!value.is_string()) return {};
  const std::string& whole = value.get_ref<const std::string&>();
  if (whole.size() <= kShownBytes) return whole;
  std::size_t end = kShownBytes;
  while (end > 0 && (static_cast<unsigned char>(whole[end]) & 0xC0) == 0x80) --end;  // not inside a code point
  return whole.substr(0, end) + "...";
}

std::uint64_t count(const Json& object, const char* key) {
  const Json& value = at(object, key);
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (value.is_number_integer()) {
    const std::int64_t number = value.get<std::int64_t>();
    return number < 0 ? 0 : static_cast<std::uint64_t>(number);
  }
  if (!value.is_number_float()) return 0;
  const double number = value.get<double>();
  return number >= 0 && number < 9.0e15 ? static_cast<std::uint64_t>(number) : 0;
}

std::uint64_t alarm_count(const Json& report) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 53;  // a report from elsewhere may say anything
  return list(report, "alarms").size() + std::min(count(report, "alarms_unlisted"), kMost);
}

bool has_count(const Json& object, const char* key) { return at(object, key).is_number(); }

std::string digits(const Json& value) {
  if (value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
  return value.is_number_integer() ? std::to_string(value.get<std::int64_t>()) : "?";
}

bool flag(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_boolean() && value.get<bool>();
}

bool known(const Json& value) {
  if (value.is_number()) return true;
  if (!value.is_string()) return false;
  const std::string& word = value.get_ref<const std::string&>();
  return word == "NaN" || word == "Infinity" || word == "-Infinity";
}

double real(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) {
    const std::string& word = value.get_ref<const std::string&>();
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace finitude::show
