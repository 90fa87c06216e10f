// Where a C++ program is while it computes: by its debug information, else by the scopes that it has named.
#pragma once

#include "observe/tracer_torch.h"

namespace finitude::recorder {

// Looks up what code is loaded, for the second run that is about to begin. debug_lines: see RecorderOptions.
void begin_places(bool debug_lines);
// Ends the processes that were asked for lines.
void end_places() noexcept;

const observe::Places& places() noexcept;

}  // namespace finitude::recorder
