// Which call of the trace made what a piece of memory holds.
#pragma once

#include <optional>

#include "record/trace.h"

namespace finitude::explain {

struct Made {
  record::OpId op = record::kNone;
  bool unwritten = false;  // it handed the memory out as it was, and no operator has written it since
};

// At the end of the trace, followed through copies. Nothing: no operator of the trace did.
std::optional<Made> made_of(const record::Trace& trace, const record::TensorUse& use);

// The call that handed out this very memory, whatever has been written to it since; kNone: no operator of the trace.
record::OpId allocation_of(const record::Trace& trace, const record::TensorUse& use);

}  // namespace finitude::explain
