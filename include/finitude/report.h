// Reads the report that a watched run leaves behind (report.json, schema 1): what happened, where it was born, and why.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/export.h"
#include "finitude/status.h"

namespace finitude {

// Where an operation stands in the user's code. Empty texts and line 0: not known.
struct Place {
  std::string op;    // innermost dispatcher op, without overload: "aten::log"
  std::string file;  // absolute
  std::int64_t line = 0;
  std::string source;  // text of that line
  std::string module;  // "Classifier.head"
};

struct Birth {
  std::string phase;  // forward, backward, optimizer, data, state, communication, memory
  Place place;
  std::string node;                // of a backward birth: "LogBackward0"
  Place forward;                   // of a backward birth: the forward op that the node belongs to
  std::vector<std::int64_t> rows;  // of the output's first dimension, that hold a bad value
};

struct Experiment {
  std::string name, outcome;
  bool confirms = false;
};

struct Cause {
  std::string cause_class;  // "log-of-zero"
  std::string confidence;   // proven, likely, possible
  std::string text;
  std::vector<Experiment> experiments;
};

struct Fix {
  std::string text;  // empty: none is known
  bool verified = false;
  std::string file;
  std::int64_t line = 0;
};

struct Alarm {
  std::int64_t step = 0;  // 0-based calls of that optimizer's step(), vetoed ones counted
  std::int64_t micro_batch = 0, rank = 0;
  std::string optimizer;  // its class
  std::string sink_kind;  // loss, gradient, parameter, state, buffer
  std::string sink_name;
  bool weights_clean = true;  // parameters and optimizer state bit-equal to before the step
  bool harmless = false;      // only the loss was bad
  std::string rerun;          // persistent, transient, order-dependent, not-run
  std::string rerun_by;       // closure, rewind, jump, restart, tape, trace, none
  std::vector<Birth> births;  // the first is the culprit
  Cause cause;
  Fix fix;
  std::string capsule;           // empty: none
  bool capsule_pending = false;  // it is being written beside the program that the report is of
};

struct Report {
  std::string outcome;  // clean, alarm, unwatched
  std::string reason;
  std::uint64_t optimizers = 0, steps = 0, gradients_scanned = 0, scaler_skips = 0, handled_by_script = 0;
  std::vector<Alarm> alarms;
};

// Bounded and total: a file may be anything. At most 256 MiB, 1000 alarms, nesting of 32. No exception leaves.
FINITUDE_API Result<Report> parse_report(std::string_view json);
// From a file, or from report.json in the directory of a run.
FINITUDE_API Result<Report> read_report(const std::string& path);

}  // namespace finitude
