#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>

#include "decide/policy.h"
#include "finitude/recorder.h"
#include "incident/step_warning.h"

namespace finitude {
namespace {

// Names the nearest right word rather than guess at one.
Status wrong(const std::string& name, const std::string& value, const std::string& wanted) {
  return Status(StatusCode::kInvalidArgument, "environment variable " + name + ": " + wanted + ", not '" + value + "'");
}

template <typename Number>
Status take_number(const char* name, Number* number) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return {};
  const std::string_view text = value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || end != text.data() + text.size()) return wrong(name, value, "a whole number");
  return {};
}

// 0 or 1, by their usual words.
Status take_switch(const char* name, bool* on) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return {};
  const std::string_view word = value;
  const bool yes = word == "1" || word == "on", no = word == "0" || word == "off";
  if (!yes && !no) return wrong(name, value, "1 or 0");
  *on = yes;
  return {};
}

void take_text(const char* name, std::string* text) {
  if (const char* value = std::getenv(name); value != nullptr && *value != '\0') *text = value;
}

}  // namespace

Result<RecorderOptions> options_from_environment(RecorderOptions options) {
  if (const char* word = std::getenv("FINITUDE_ON_ALARM"); word != nullptr && *word != '\0') {
    switch (decide::parse_policy(word).value_or(decide::Policy::kRollback)) {
      case decide::Policy::kStop:
        options.on_alarm = OnAlarm::kStop;
        break;
      case decide::Policy::kSkip:
        options.on_alarm = OnAlarm::kSkip;
        break;
      case decide::Policy::kWarn:
        options.on_alarm = OnAlarm::kWarn;
        break;
      case decide::Policy::kRaise:
        options.on_alarm = OnAlarm::kRaise;
        break;
      case decide::Policy::kRollback:
      case decide::Policy::kLowerRate:
        return wrong("FINITUDE_ON_ALARM", word, "one of stop, skip, warn, raise");
    }
  }
  std::uint64_t megabytes = options.capsule_max_bytes >> 20;
  std::uint64_t seconds = std::numeric_limits<std::uint64_t>::max();
  for (const Status& status :
       {take_number("FINITUDE_MAX_SKIPS", &options.max_skips), take_number("FINITUDE_MAX_BAD", &options.max_bad),
        take_number("FINITUDE_CAPSULES", &options.capsules), take_number("FINITUDE_CAPSULE_MAX", &megabytes),
        take_switch("FINITUDE_REDACT", &options.redact), take_number("FINITUDE_EXPERIMENTS", &seconds),
        take_switch("FINITUDE", &options.on)}) {
    if (!status.ok()) return status;
  }
  options.capsule_max_bytes = megabytes > (UINT64_MAX >> 20) ? UINT64_MAX : megabytes << 20;
  if (seconds != std::numeric_limits<std::uint64_t>::max()) options.experiments = static_cast<double>(seconds);
  take_text("FINITUDE_WARNINGS", &options.warnings);
  if (!incident::is_warnings_option(options.warnings))
    return wrong("FINITUDE_WARNINGS", options.warnings.c_str(), "all, off, or names of docs/warnings.md with commas");
  take_text("FINITUDE_RUNS", &options.runs);
  take_text("FINITUDE_REPORT", &options.report);
  return options;
}

}  // namespace finitude
