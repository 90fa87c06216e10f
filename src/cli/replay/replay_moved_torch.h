// How far the results of a step moved between two plays of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "compare/distance.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::cli {

struct MovedResult {
  std::string name;  // "loss", "gradient head.weight"
  compare::Distance distance;
  // The largest change over the largest value: of the result, for a gradient of all gradients. One that is rounding
  // alone, as that of a bias before batch norm, changes by as much as it is.
  double relative = 0;
};

struct Moved {
  std::size_t results = 0, differing = 0;        // all, and those with other bits
  std::optional<MovedResult> loss, gradient;     // that moved: the loss, and the gradient that moved farthest
  std::optional<MovedResult> other;              // the same of all other results
  std::vector<std::string> now_finite, now_not;  // results that became finite as a whole, or ceased to be
  bool loss_is_finite = true;                    // before
  std::size_t broken = 0;                        // values that are finite in one of the two plays only
  // What counts more comes first: which results are finite, which values are, then the relative change.
  bool moved_more_than(const Moved& other) const;
  double relative() const;  // the largest of loss and gradients; 0: same bits
};

// before, after: what KeepOutcomes kept of two plays of the tape.
Moved moved_results(const capture::Tape& tape, const std::vector<replay::NamedTensor>& before,
                    const std::vector<replay::NamedTensor>& after);

// "812 ulps, 3.4e-03 relative"
std::string moved_text(const MovedResult& result);

}  // namespace finitude::cli
