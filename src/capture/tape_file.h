// The file of a tape: docs/format/tape.md describes it byte by byte.
#pragma once

#include <string>
#include <string_view>

#include "capture/tape.h"
#include "finitude/status.h"

namespace finitude::capture {

inline constexpr std::string_view kTapeMagic = "FitTape\n";
inline constexpr std::uint32_t kTapeVersion = 2;       // of tapes with memory that is not the CPU's
inline constexpr std::uint32_t kTapeVersionOnCpu = 1;  // of all others: what was written before reads them
inline constexpr std::size_t kTapeHeaderBytes = 64;

std::string write_tape(const Tape& tape);

// Hostile bytes are reported, never followed: what is allocated is bounded by what was read. References between
// the parts of a tape hold afterwards (operators and storages exist, counts fit); what only a replay can know
// does not.
Status read_tape(std::string_view bytes, Tape* tape);

}  // namespace finitude::capture
