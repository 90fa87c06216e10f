// The report of one process, but for the lists of its alarms and advisories: docs/report.schema.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace finitude::incident {

inline constexpr std::size_t kMaxAdvisories = 10'000;  // of a report
inline constexpr std::size_t kAdvisoriesOfAKind = 20;  // of one process

struct Counters {
  std::uint64_t optimizers = 0, steps = 0, backward_calls = 0;
  std::uint64_t gradients_scanned = 0;  // tensors
  std::uint64_t scaler_skips = 0;       // steps that a GradScaler skipped
  std::uint64_t handled = 0;            // bad steps that the program itself did not apply
};

struct RunFacts {
  std::string finitude, torch;        // versions
  std::optional<std::string> python;  // version; none: the program is one in C++
  std::vector<std::string> command;
  std::string script;     // path of the script or program
  bool by_watch = false;  // the program called finitude.watch without `finitude run`
  std::string started;    // RFC 3339
  double seconds = 0;     // since then
  Counters counters;
  std::vector<std::string> not_watched;
  std::optional<std::string> first_alarm;  // its text; none: there was no alarm
  std::string failure;                     // why nothing was watched; empty: it was
  std::uint64_t unapplied = 0;             // windows at the end that no step applied; 0: not worth a word
  std::uint64_t zero_gradients = 0;        // applied steps at the end, in a row, with only zero gradients
  std::uint64_t ranks = 1;
  // What the policy did: steps skipped, returns to a copy, learning rates lowered.
  std::uint64_t skipped = 0, went_back = 0, lowered_rates = 0;
};

// All of the report that is no list, keys in the order in which a person reads them. "alarms" and "advisories" are for
// the caller to add.
nlohmann::ordered_json report_head(const RunFacts& facts);

// Facts out of JSON with the names of the members above. Throws nlohmann::json::exception where one has another type.
RunFacts facts_of(const nlohmann::json& value);

// The last steps of an optimizer, in a row, in which every gradient was exactly zero, though the loss was not.
struct ZeroRow {
  std::string optimizer;  // class
  std::uint64_t first = 0, count = 0;
};

// Where there are so many of them that nothing is learned any more.
nlohmann::json zero_gradients_advisory(const ZeroRow& row);

nlohmann::json advisory(const std::string& kind, std::optional<std::uint64_t> step, const std::string& text);
// That `count` alarms are not listed since a report holds no more.
nlohmann::json unlisted_advisory(std::uint64_t count);

// Did the process of that report train?
bool trained(const nlohmann::json& report);

// The line that every run ends with, without "Report: PATH".
std::string closing_line(const nlohmann::json& report);

}  // namespace finitude::incident
