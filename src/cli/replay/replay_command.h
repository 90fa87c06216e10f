// The command: what its words ask for, done with a capsule.
#pragma once

#include "cli/replay/replay_options.h"
#include "replay/tape_calls.h"

namespace finitude::cli {

// The exit code. `out` gets what is asked for, `err` why it cannot be done; both are called from this thread.
// Needs no Python. One at a time.
int run_replay(const ReplayOptions& options, const replay::Say& out, const replay::Say& err);

}  // namespace finitude::cli
