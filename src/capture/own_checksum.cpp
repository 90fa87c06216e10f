#include "capture/own_checksum.h"

#include <algorithm>
#include <cstdio>

#include "base/checksum.h"

namespace finitude::capture {
namespace {

constexpr const char* kSum = "checksum";
constexpr const char* kHasSum =
    "has_checksum";  // is before it: without it a damaged name of the last member would hide it

std::string end_of(std::string_view before) {
  return ",\n \"" + std::string(kSum) + "\": \"" + hex(base::checksum(before.data(), before.size())) + "\"\n}\n";
}

}  // namespace

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string with_own_checksum(nlohmann::json document) {
  document.erase(kSum);
  document[kHasSum] = true;
  std::string text = document.dump(1, ' ', true, nlohmann::json::error_handler_t::replace);
  text.resize(text.size() - 2);  // its last line
  return text + end_of(text);
}

Status check_own_checksum(std::string_view bytes, const nlohmann::json& document) {
  if (!document.is_object() || (!document.contains(kSum) && !document.contains(kHasSum))) return {};
  const std::size_t end = end_of({}).size();
  const std::string_view before = bytes.substr(0, bytes.size() - std::min(end, bytes.size()));
  return bytes.substr(before.size()) == end_of(before)
             ? Status()
             : Status(StatusCode::kCorrupt, "is damaged: its checksum differs");
}

}  // namespace finitude::capture
