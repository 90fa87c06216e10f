#include "show/summary.h"

#include <algorithm>

#include "show/words.h"

namespace finitude::show {

std::string summary(const Json& report) {
  std::string line = text(report, "outcome");
  line.resize(std::max<std::size_t>(line.size(), 9), ' ');
  const Json& alarms = list(report, "alarms");
  if (alarms.empty()) {
    return line + "  " + (text(report, "outcome") == "unwatched" ? outcome_sentence(report) : watched_sentence(report));
  }
  const Json& first = alarms[0];
  line += "  " + headline(report, first);
  const std::string kind = text(at(first, "cause"), "class");
  if (!kind.empty() && kind != "unknown") line += " Cause: " + kind + ".";
  if (const std::uint64_t more = alarm_count(report) - 1; more > 0) line += " And " + counted(more, "alarm") + " more.";
  return line;
}

}  // namespace finitude::show
