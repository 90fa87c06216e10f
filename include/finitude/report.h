// Reads the report that a watched run writes (report.json, schema 1): what happened, where it was born, and why.
//
// The structs hold what programs most often need; docs/report.schema.json describes the whole document. A field that is
// absent in the file, or of another type than expected, is read as empty, 0 or false. A text is cut at 4 KiB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/export.h"
#include "finitude/status.h"

namespace finitude {

// The place of an operation in the user's code. Empty texts and line 0 mean: not known.
struct Place {
  // Innermost dispatcher operator, without overload: "aten::log".
  std::string op;
  // Absolute path.
  std::string file;
  // From 1.
  std::int64_t line = 0;
  // Text of that line.
  std::string source;
  // Path of the module, or of the scopes of a C++ program: "Classifier.head".
  std::string module;
};

// A birth: an operation with finite inputs whose output holds a NaN or Inf.
struct Birth {
  // When it ran: forward, backward, optimizer, data, state, communication or memory.
  std::string phase;
  Place place;
  // Of a backward birth: name of the autograd node ("LogBackward0"). Else empty.
  std::string node;
  // Of a backward birth: the forward operation that the node belongs to. Else empty.
  Place forward;
  // Indices into the first dimension of the output: the rows that hold a bad value. Empty: not known.
  std::vector<std::int64_t> rows;
};

// One experiment on the birth, such as the same operation in float64.
struct Experiment {
  // What was tried, and its result, in words.
  std::string name, outcome;
  // True: the result is what the cause predicts.
  bool confirms = false;
};

// Why the birth happened.
struct Cause {
  // Class of the cause, as listed in docs/causes.md: "log-of-zero". "unknown" if no rule applies.
  std::string cause_class;
  // proven, likely or possible.
  std::string confidence;
  // The explanation in words.
  std::string text;
  // What the confidence rests on.
  std::vector<Experiment> experiments;
};

// What to change.
struct Fix {
  // Empty: none is known.
  std::string text;
  // True: the whole step was computed with this change, and loss and gradients are finite.
  bool verified = false;
  // Where to change it. Empty and 0: not known.
  std::string file;
  std::int64_t line = 0;
};

// One bad step.
struct Alarm {
  // 0-based calls of step() of that optimizer. Vetoed ones count.
  std::int64_t step = 0;
  // 0-based. micro_batch: which backward of the window. rank: which process of a distributed run.
  std::int64_t micro_batch = 0, rank = 0;
  // Name of the optimizer's class.
  std::string optimizer;
  // The sink: loss, gradient, parameter, state or buffer.
  std::string sink_kind;
  // The name of that tensor ("head.weight").
  std::string sink_name;
  // True: parameters and optimizer state have the bits from before the step.
  bool weights_clean = true;
  // True: only the loss is bad, every gradient is finite.
  bool harmless = false;
  // What the second run showed: persistent, transient, order-dependent or not-run.
  std::string rerun;
  // How the step was run again: closure, rewind, jump, restart, tape, trace or none.
  std::string rerun_by;
  // The first is the one that the report is about.
  std::vector<Birth> births;
  Cause cause;
  Fix fix;
  // Folder of the capsule. Empty: none was written.
  std::string capsule;
  // True: the capsule was still being written when this was, so the folder need not exist yet.
  bool capsule_pending = false;
};

// The report of one run.
struct Report {
  // clean, alarm or unwatched. Readers of runs that have not ended by themselves also use running and killed.
  std::string outcome;
  // Of unwatched: why nothing that trains was seen.
  std::string reason;
  // What was watched. scaler_skips: steps that a GradScaler skipped. handled_by_script: bad steps that the script
  // dropped itself.
  std::uint64_t optimizers = 0, steps = 0, gradients_scanned = 0, scaler_skips = 0, handled_by_script = 0;
  // In the order of the file. At most 1000.
  std::vector<Alarm> alarms;
};

// Reads a report from `json`. The input may be anything: size (256 MiB), number of alarms (1000) and nesting (32) are
// bounded. Does not keep a reference to `json`.
//
// Errors: kTooLarge (above 256 MiB), kCorrupt (not JSON, nested too deep, or not a report of schema 1; empty input is
// not JSON). Any thread. Throws nothing except std::bad_alloc.
FINITUDE_API Result<Report> parse_report(std::string_view json);
// Reads the report in the file `path`, in `path`/report.json, or in the capsule `path`.
//
// Errors: kUnreadable (missing, not a plain file, a folder without a report, or refused by the system), kTooLarge and
// kCorrupt as above. why() begins with `path`. Any thread; blocks on file I/O. Throws nothing except std::bad_alloc.
FINITUDE_API Result<Report> read_report(const std::string& path);

}  // namespace finitude
