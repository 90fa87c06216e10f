// What explains a bad value in memory that no recorded operator wrote.
#pragma once

#include "locate/timeline.h"
#include "record/trace.h"

namespace finitude::locate {

// An activation that a checkpoint computes again is kept by a hook, which ends the last of those operators by an
// exception as soon as all are there: its result is used, and the trace has none. The last such operator that began
// before anything had seen the memory
// (`first_seen`, a moment); kNone: none.
record::OpId interrupted_writer(const record::Trace& trace, const Timeline& timeline, record::OpId reader,
                                std::uint32_t first_seen);

// A kernel of PyTorch's own may hand memory to an operator that nobody had before (`first_seen`, a moment) it began:
// its result, not yet written, as an input (interpolate of channels_last). The innermost such operator around the
// reader; kNone: none.
record::OpId owner_of_result(const record::Trace& trace, const Timeline& timeline, record::OpId reader,
                             std::uint32_t first_seen);

// A kernel may write memory without calling an operator. If a reader inside an op finds bad values in memory that first
// came into use inside that same op, or that the op is known to write (index_reduce_ adds up in its own loop and then
// calls div_), the op itself wrote them. `since`: the moment it came into use. The innermost such op around the reader,
// which may be kNone; kNone: none.
record::OpId raw_writer(const record::Trace& trace, const Timeline& timeline, record::OpId reader,
                        const record::TensorUse& use, std::uint32_t since);

// The view through which integers are read as floats: their bits are what they are, and no operator made a NaN of them.
record::OpId reinterpreted(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

}  // namespace finitude::locate
