// --perturb: how far loss and gradients of a step move when calls are computed in another way.
#pragma once

#include "capture/tape.h"
#include "cli/replay/replay_options.h"
#include "replay/tape_calls.h"

namespace finitude::cli {

// The exit code: 0 the same results are non-finite, 1 others are, 2 --at names nothing, 4 it cannot be done here.
int run_perturb(const ReplayOptions& options, const capture::Tape& tape, const replay::Say& out,
                const replay::Say& err);

}  // namespace finitude::cli
