// A bad step as a report holds it: an alarm of docs/report.schema.json. Programs in Python and in C++ have the same
// one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "decide/policy.h"
#include "explain/explain.h"

namespace finitude::incident {

// What the step was raised for.
struct Sink {
  std::string kind, name;  // "loss", "gradient", "parameter", "state", "buffer"; name as PyTorch has it
};

// What a second run of the step came to.
struct Rerun {
  std::string outcome = "not-run";  // "persistent", "transient", "not-run"
  std::string by = "none";          // the way that ran it
  bool verified = false;            // its loss and gradients have the bits of the first
  std::string text;                 // one sentence; of ways that did not serve as well
};

// What the experiments with the whole step took, and what they might have taken.
struct ExperimentTime {
  double tried_seconds = 0, budget_seconds = 0;
  bool out_of_time = false;  // some were not made
};

struct Cause {
  std::string name = "unknown", confidence = "possible", text = kNotRun;
  nlohmann::json experiments = nlohmann::json::array();  // as show/findings.h makes them
  std::optional<ExperimentTime> time;                    // of experiments with the whole step

  static constexpr const char* kNotRun = "the step was not run again";
};

struct Fix {
  std::string text, file;
  int line = 0;
  bool verified = false;       // the whole step was run with it and came out finite
  std::string tried, outcome;  // what was tried for it, and what came of that; empty: nothing was
  nlohmann::json edit;         // as show/findings.h makes it; null: there is none
};

// A gradient that holds non-finite elements.
struct BadGradient {
  std::string name;
  std::uint64_t nan = 0, inf = 0, numel = 0;
};
struct Gradients {
  std::vector<BadGradient> bad;
  std::uint64_t clean = 0;
};

struct Alarm {
  std::uint64_t step = 0;         // optimizer steps before it
  std::uint64_t micro_batch = 0;  // backward calls of the step before the bad one
  int rank = 0;
  std::string optimizer;            // name of its class
  std::optional<unsigned> ordinal;  // of the optimizer; only while the alarm is not reported yet
  Sink sink;
  bool weights_damaged = false;
  Rerun rerun;
  nlohmann::json births = nlohmann::json::array(), path = nlohmann::json::array();  // as show/findings.h makes them
  Cause cause;
  std::optional<Fix> fix;
  std::optional<std::string> capsule;  // its folder
  bool capsule_pending = false;        // it is still being written
  bool capsule_redacted = false;
  bool harmless = false;       // the loss is not finite, every gradient is
  std::string text;            // one sentence: what is not finite
  std::optional<double> loss;  // of its micro-batch
  std::string level;           // empty: of a program in C++, which has one level
  std::string policy;          // the value of --on-alarm
  std::string action;          // what became of the step; empty: not decided yet
  explain::StepHistory history;
  nlohmann::ordered_json onset;  // as incident/onset.h makes it; null: none
  std::optional<Gradients> gradients;

  // Births, cause, fix and path of findings that have at least one birth; they move out of `found`.
  void adopt(nlohmann::json& found);
};

// With the keys of the schema, in the order in which a person reads them. Keys whose values are not known (action,
// level, gradients) are absent.
nlohmann::ordered_json to_json(const Alarm& alarm);

// A birth of which only the phase, and perhaps the operation, is known.
nlohmann::json bare_birth(const std::string& phase, const std::string& op = "");

}  // namespace finitude::incident
