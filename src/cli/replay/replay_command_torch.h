// The command for a caller that wants the tensors of the call which it stopped at.
#pragma once

#include <vector>

#include "cli/replay/replay_command.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::cli {

struct StoppedCall {
  bool stopped = false;
  std::vector<replay::NamedTensor> inputs, outputs;
};

// As run_replay() of replay_command.h. stopped: what --stop-at or --break came to; may be null.
int run_replay(const ReplayOptions& options, const replay::Say& out, const replay::Say& err, StoppedCall* stopped);

}  // namespace finitude::cli
