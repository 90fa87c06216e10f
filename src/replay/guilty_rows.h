// Which samples of the batch make the captured step fail, by bisection.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "capture/tape.h"
#include "record/trace.h"
#include "replay/edit.h"

namespace finitude::replay {

// A call whose result says whether the step fails.
struct JudgedCall {
  std::size_t entry = 0;
  bool nan_only = false;             // infinities in it may be meant
  bool one_of_batches = false;       // the step computes other batches too, each with a backward of its own
  std::vector<std::size_t> notes{};  // of its tensors: what it keeps for its backward, which it may not have written
};

// The tensors that came in from outside or that the step made itself (batch_inputs.h), and have the most common number
// of rows, are taken for the batch; where it fails whatever sample they hold, those with the next number. Sample by
// sample the batch is made of copies of one healthy sample, and of the original ones by halves, until those are left
// that bring the failure back. The tape is played for each try.
//
// Where other samples would make other shapes (what a mask takes out of the batch), the whole step cannot say; then
// the tape is played up to the birth only, and that call's result is judged. So it is from the start where the step has
// micro- batches: their samples have the same numbers, and only those of the birth's batch reach it.
//
// born_at: the call of the birth, or the first that reads it, up to which rows of the batch have to stay apart to be
// called samples.
GuiltyRows find_guilty_rows(const capture::Tape& tape, const record::Trace* trace,
                            const std::vector<std::int64_t>& spare, const std::optional<JudgedCall>& birth,
                            const std::optional<std::size_t>& born_at, double seconds);

// The search alone. fails(kept): does the step fail with these samples as they were and all others replaced? Every
// sample of `all` together fails, and none of them does not. At most `most` are found.
void bisect(const std::function<bool(const std::vector<std::int64_t>&)>& fails, std::vector<std::int64_t> all,
            std::size_t most, const std::function<bool()>& has_time, GuiltyRows* out);

}  // namespace finitude::replay
