// How far weights have grown since the first step, and what is unsound of their size alone: that they are finite does
// not make them sound.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "finitude/dtype.h"

namespace finitude::incident {

struct Weight {
  std::string name;
  sense::DType dtype = sense::DType::kOther;
  std::optional<double> start, now;  // largest finite magnitudes; none: not known
  bool is_all_bad = false;           // nothing finite is left of it, so `now` says nothing of its growth
};

struct Growth {
  std::optional<double> factor;  // the largest of any parameter since the first step
  std::string text;              // what is unsound of it; empty: nothing
};

// most_at_start: of all weights at the first step. by_rate: the updates are known to be too large.
Growth growth_of(const std::vector<Weight>& weights, double most_at_start, bool by_rate);

// What is unsound of weights for their size alone: the one nearest to the limit of its dtype, or one of nothing but
// subnormal numbers; empty where all are well inside. Numbers of eight bits are scaled to fill their range: not judged.
std::string extremes_of(const std::vector<Weight>& weights);

// Of weights that began so and need not have grown: "w reaches 1e+13"; empty where none is that large.
std::string beyond_use(const std::vector<Weight>& weights);

}  // namespace finitude::incident
