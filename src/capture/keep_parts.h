// Of a large table of which a step reads some rows, a capsule holds these rows.
#pragma once

#include "capture/tape.h"

namespace finitude::capture {

// Inputs that have no name and of which little is read (Storage::parts) become blank memory, and what is read of them
// fills right before the first call that takes them. Weights and batches keep all of their content: they are used for
// more than this step.
void keep_parts(Tape& tape);

}  // namespace finitude::capture
