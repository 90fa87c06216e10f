// The step played with other content in memory that it read before anything was written to it.
#pragma once

#include "capture/tape.h"
#include "replay/edit.h"

namespace finitude::replay {

// Such memory came from torch.empty and its kin within the step; its content is on the tape as it happened to be. Of
// several such calls, `made` is the first whose memory alone, filled with zeros, makes the step finite, where one does.
// NaN goes only into memory of floating numbers.
FillTrial fill_unwritten(const capture::Tape& tape, double seconds);

}  // namespace finitude::replay
