// What is said of one birth, what it is said of, and the form of a rule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "locate/birth.h"
#include "record/trace.h"
#include "replay/edit.h"
#include "replay/lab.h"

namespace finitude::explain {

using replay::Lab;
using replay::Trial;
using replay::Variant;

struct Experiment {
  std::string name, outcome;
  bool confirms = false;
  bool predicted = true;                // the cause says what the outcome has to be
  std::vector<std::int64_t> rows = {};  // samples of the batch that it is about
  std::int64_t of_rows = 0;             // of so many
};

// What to do about a cause, as one rule has it.
struct Advice {
  enum class Way : std::uint8_t {
    kOther,
    kClamp,    // of the operand, which edits can try
    kReplace,  // of its zeros, likewise
    kNoEdit,   // what edits cannot try
  };
  std::string text;
  Way way = Way::kOther;
  bool is_above_zero = false;  // a clamp of what divides
};

// Where a bad value came from that no operation of the step computed.
enum class CameFrom : std::uint8_t {
  kOther,
  kPython,  // made in Python or NumPy, and handed in by an operation
  kNan,     // a number of the script's, as an argument of an operation
  kInf,
};

struct Finding {
  std::string cause_class;  // docs/contract.md, "Cause classes"
  std::string confidence;   // "proven" | "likely" | "possible"
  std::string text;         // one sentence
  std::vector<Experiment> experiments;
  std::string fix_text;  // empty: none known
  std::string fix_file;
  int fix_line = 0;
  bool fix_is_no_edit = false;  // the text names another way than the edits can try
  bool is_overflow = false;     // finite operands that left the range of the format, whatever class that gets
  CameFrom came_from = CameFrom::kOther;
  bool clamps_divisor = false;  // that is the fix, of a division by zero
  bool in_optimizer = false;    // born in an optimizer's step: its rows are those of weights, never samples
  int score = 0;                // rules compete; the highest wins

  std::vector<replay::Edit> edits;       // by which the fix can be tried on the whole step, best first
  std::optional<replay::Beside> beside;  // 0 / 0 that may have a limit
  std::vector<std::int64_t> rows;        // of the birth
  record::OpId born_in = record::kNone;  // the op whose result is the birth, or the first that read it
  // The call that handed out memory of which the step read a part that nobody had written, where that is the cause.
  record::OpId handed_out_by = record::kNone;
  std::vector<std::int64_t> loaded;  // samples in the step's batches, as their loader counts them; empty: not reported
  // What came of it (try_on_step).
  std::string judged = "loss and gradients";  // of the step: what is reported as finite
  bool fix_verified = false;
  std::string fix_tried, fix_outcome;    // empty: not tried
  std::optional<replay::Edit> fix_edit;  // the verified one
  double step_seconds = 0, tried_seconds = 0, budget_seconds = 0;
  bool out_of_time = false;
  std::int64_t batch_rows = 0;       // samples in the batch, where a search reported
  bool of_batch = false;             // those are rows of the batch: not of just any input that explains the failure
  bool across = false;               // they are columns of the batch, at most
  std::vector<std::int64_t> guilty;  // those of them that make the step fail, each alone; all of them or none

  // Whether one row of a batch of so many is one sample. A loader may put several rows for each sample into a batch
  // (nodes of graphs, frames of clips).
  bool is_row_a_sample(std::int64_t rows) const {
    return loaded.empty() || std::ranges::find(loaded, rows) != loaded.end();
  }
};

// What the run knows besides the trace.
struct StepHistory {  // oldest first, at most the last 32 good steps before the alarm
  std::vector<double> loss, grad_absmax, param_absmax, learning_rate;
  double lr_now = 0;    // of the group with the largest; NaN possible. learning_rate is of the first group
  double lr_least = 0;  // of the group with the smallest, where those of groups differ; else 0
  bool half_parameters = false;
  bool scaler_active = false;
  double scale = 0;
  double left_scale = 0;  // of a GradScaler that scaled the loss and has never unscaled a gradient; 0: there is none
  std::uint32_t scaler_skips_in_row = 0;
  std::string optimizer;  // class name
  double optimizer_eps = 0;
  std::vector<std::int64_t> samples;  // in each batch that the loader gave this step; empty: not known of all
};

struct Evidence {
  const record::Trace& trace;
  const locate::Located& located;
  std::size_t birth;  // index into located.births
  const StepHistory& history;
  Lab* lab;  // may be null
};

class Rule {
 public:
  virtual ~Rule() = default;
  virtual const char* name() const = 0;
  virtual std::optional<Finding> judge(const Evidence& evidence) const = 0;
};

}  // namespace finitude::explain
