// First pass, forward in time: every non-finite value that was written or found gets a label, and its
// sources.
#pragma once

#include "locate/birth.h"
#include "locate/flow.h"
#include "record/trace.h"

namespace finitude::locate {

// `trace` must outlive the result. `meant`: infinities that count as put there on purpose.
Flow label(const record::Trace& trace, const Meant& meant = {});

}  // namespace finitude::locate
