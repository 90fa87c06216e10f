// Which of the records of two dumps is the first whose outcome rounding does not explain, and what explains it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compare/record_pairs.h"

namespace finitude::compare {

struct RecordRoot {
  enum class Kind {
    kModule,     // the same inputs, parameters and settings came to something else
    kSettings,   // eps, p, training: the settings of the module differ
    kParameter,  // a parameter or buffer differs
    kRandom,     // a module that draws random numbers
    kData,       // what the model is given differs
    kBetween,    // code between two records made another value of the same
    kCalls,      // the same, and there are records that only one side has
    kGradient,   // all of the forward agrees, and a gradient does not
    kOptimizer,  // the same of what the optimizer computes
  } kind = Kind::kModule;
  std::size_t row = 0;                  // whose outcome differs, or which reads what differs
  std::vector<std::string> explainers;  // names of inputs or parameters that differ, or both settings
  std::string within;                   // kBetween, kCalls: the module whose own code is meant; may be empty
  std::vector<std::size_t> others;      // kCalls: rows with one side
};

struct RecordJudgement {
  bool has_root = false;
  RecordRoot first;
  std::vector<std::size_t> further;  // rows whose inputs agree and whose outcome differs, behind the first
  std::size_t pairs = 0, same = 0, noise = 0, differ = 0, unknown = 0, only_a = 0, only_b = 0, by_structure = 0;
  std::size_t other_dtype = 0;              // pairs
  std::vector<std::size_t> other_settings;  // rows
  std::size_t noise_row = 0;                // the first pair within noise; the number of rows: none
};

RecordJudgement judge_records(const Dump& a, const Dump& b, const std::vector<RecordRow>& rows,
                              const std::vector<RecordPair>& pairs);

std::string_view word(RecordRoot::Kind kind) noexcept;

}  // namespace finitude::compare
