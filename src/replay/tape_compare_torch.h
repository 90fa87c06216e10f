// A step that was computed in another dtype, compared with itself.
#pragma once

#include <string>
#include <vector>

#include "replay/tape_statistics_torch.h"
#include "replay/tape_verdict.h"

namespace finitude::replay {

// usual, changed: the outcomes of both replays, in the same order. The code is 0 where the same results are
// non-finite.
Reported compare_dtypes(const std::string& dtype, const std::vector<NamedTensor>& usual,
                        const std::vector<NamedTensor>& changed, const Played& played);

}  // namespace finitude::replay
