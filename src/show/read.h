// Total readers of the report's JSON: a missing or mistyped value reads as empty, so no renderer can fail on
// a report.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace finitude::show {

using Json = nlohmann::json;

// The value of `key`, or a null value where `object` is none or lacks it.
const Json& at(const Json& object, const char* key);
// The same where it is an array, else an empty array.
const Json& list(const Json& object, const char* key);

// Empty unless it is a string. At most 4 KiB: what is shown to a reader, not what is kept.
std::string text(const Json& object, const char* key);
std::uint64_t count(const Json& object, const char* key);  // 0 unless it is a non-negative number
bool has_count(const Json& object, const char* key);
// How many alarms a run had by its report: those listed, and those past what a report holds.
std::uint64_t alarm_count(const Json& report);
// The digits of an integer, "?" for anything else.
std::string digits(const Json& value);
bool flag(const Json& object, const char* key);

// A number, or the string "NaN", "Infinity", "-Infinity", as a double; NaN for anything else. `known` says
// the two apart.
double real(const Json& value);
bool known(const Json& value);

}  // namespace finitude::show
