// --stress: the step on every CPU core, or GPU, of this machine.
#pragma once

#include "capture/tape.h"
#include "cli/replay/replay_options.h"
#include "replay/tape_calls.h"

namespace finitude::cli {

// Starts a process for each core and judges what they gave. The exit code: 0, 1, or 4 where nothing can be said.
int run_stress(const ReplayOptions& options, const capture::Tape& tape, const replay::Say& out, const replay::Say& err);

// What such a process does: a line on standard output for each play.
int play_on_core(const ReplayOptions& options, const capture::Tape& tape, const replay::Say& out,
                 const replay::Say& err);

}  // namespace finitude::cli
