// The step played with other content in memory that it read before anything was written to it.
#pragma once

#include "capture/tape.h"
#include "replay/edit.h"

namespace finitude::replay {

// Such memory came from torch.empty and its kin within the step; its content is on the tape as it happened to be. Of
// several such calls, `made` is the first whose memory alone makes the step fail: with zeros in that of all others it
// still does. NaN goes only into memory of floating numbers.
FillTrial fill_unwritten(const capture::Tape& tape, double seconds);

// The same of a step whose results are finite: does it depend on such memory? Of several such calls, `made` is the
// first whose memory alone, filled with NaN, makes the step fail, where one does.
FillTrial fill_unwritten_of_finite(const capture::Tape& tape, double seconds);

}  // namespace finitude::replay
