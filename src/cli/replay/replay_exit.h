// Exit codes of a replay.
#pragma once

namespace finitude::cli {

enum ReplayExit { kDone = 0, kNotReproduced = 1, kUsage = 2, kUnreadable = 3, kCannotHere = 4 };

}  // namespace finitude::cli
