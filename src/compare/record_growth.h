// By how much each record of a dump makes its values larger, and where values stop being finite.
#pragma once

#include <string>
#include <vector>

#include "compare/records.h"

namespace finitude::compare {

struct Growth {
  std::size_t record = 0;
  double in = 0, out = 0;  // largest magnitudes
  double ratio = 0;        // out / in; 0: it reads nothing, or zeros
  bool is_born = false;    // what it reads is finite, and what it returns is not
  bool is_broken = false;  // what it returns is not finite
};

// The ones where NaN or Inf is born first, in order; then by ratio, the largest first. The gradient of what a
// module returned is held against the one before it in the backward: what is between them made it larger.
std::vector<Growth> ranked_growth(const std::vector<Record>& records);

struct ModuleGrowth {
  std::string name;         // path
  std::size_t depth = 0;    // 0: no module around it
  std::size_t records = 0;  // in it, those of modules in it too
  double ratio = 0;         // the largest of them
  double out = 0;           // the largest magnitude that one of them returns
  bool is_broken = false;
};

// Modules, each before those in it, in the order of their first record.
std::vector<ModuleGrowth> module_growth(const std::vector<Record>& records, const std::vector<Growth>& growth);

}  // namespace finitude::compare
