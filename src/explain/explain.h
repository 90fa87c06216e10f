// Evidence in; cause, confidence and fix out.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "locate/slice.h"
#include "record/trace.h"

namespace finitude::explain {

// One change to a captured call, tried on its own inputs. Fields that are unset leave the call as it was.
struct Variant {
  std::optional<sense::DType> compute_dtype;   // every floating input cast to it, the op run in it
  std::string clamp_arg;                       // tensor argument to clamp, with the bounds below
  std::optional<double> clamp_min, clamp_max;
  std::string add_arg; double add = 0;         // arg + add (an epsilon)
  std::string replace_arg; double replace_from = 0, replace_to = 0;  // elements of arg equal to `from` become `to` (NaN and Inf match themselves)
  std::string scale_arg; double scale = 1;     // arg * scale
  std::vector<std::int64_t> drop_rows;         // rows (dimension 0) left out of every tensor that has that many rows
  bool again = false;                          // unchanged: does it do the same?
};

struct Trial {
  bool ran = false;
  std::string why_not;                         // where it did not run
  std::vector<sense::Health> outputs;          // of its tensor outputs, in order
  bool finite() const;                         // ran and every output is finite
};

// Runs captured calls again. The live half implements it on torch; tests with tables.
class Lab {
 public:
  virtual ~Lab() = default;
  virtual Trial run(record::OpId op, const Variant& variant) = 0;
};

struct Experiment { std::string name, outcome; bool confirms = false; };

struct Finding {
  std::string cause_class;                     // a class of CONTRACTS section 5
  std::string confidence;                      // "proven" | "likely" | "possible"
  std::string text;                            // one sentence
  std::vector<Experiment> experiments;
  std::string fix_text;                        // empty: none known
  std::string fix_file; int fix_line = 0;
  int score = 0;                               // rules compete; the highest wins
};

// What the run knows besides the trace.
struct StepHistory {                            // oldest first, at most the last 32 good steps before the alarm
  std::vector<double> loss, grad_absmax, param_absmax, learning_rate;
  double lr_now = 0;                            // of the first group; NaN possible
  bool half_parameters = false;
  bool scaler_active = false; double scale = 0; std::uint32_t scaler_skips_in_row = 0;
  std::string optimizer;                        // class name
  double optimizer_eps = 0;
};

struct Evidence {
  const record::Trace& trace;
  const locate::Located& located;
  std::size_t birth;                            // index into located.births
  const StepHistory& history;
  Lab* lab;                                     // may be null
};

class Rule {
 public:
  virtual ~Rule() = default;
  virtual const char* name() const = 0;
  virtual std::optional<Finding> judge(const Evidence& evidence) const = 0;
};

// The ordered list of all rules (rule_list.cpp).
const std::vector<std::unique_ptr<Rule>>& rules();

// The best finding over all rules; cause_class "unknown" where none speaks.
Finding explain(const Evidence& evidence);

}  // namespace finitude::explain
