// Which samples of the batch make the captured step fail, by bisection.
#pragma once

#include <functional>
#include <vector>

#include "capture/tape.h"
#include "replay/edit.h"

namespace finitude::replay {

// The tensors that came in from outside or that the step made itself (batch_inputs.h), and have the most common number of
// rows, are taken for the batch; where it fails whatever sample they hold, those with the next number. Sample by sample
// the batch is made of copies of one healthy sample, and of the original ones by halves, until those are left that bring
// the failure back. The tape is played for each try.
GuiltyRows find_guilty_rows(const capture::Tape& tape, const std::vector<std::int64_t>& spare, double seconds);

// The search alone. fails(kept): does the step fail with these samples as they were and all others replaced? Every
// sample of `all` together fails, and none of them does not. At most `most` are found.
void bisect(const std::function<bool(const std::vector<std::int64_t>&)>& fails, std::vector<std::int64_t> all,
            std::size_t most, const std::function<bool()>& has_time, GuiltyRows* out);

}  // namespace finitude::replay
