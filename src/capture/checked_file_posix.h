// A file that is read back as it is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/status.h"

namespace finitude::capture {

struct CheckedFile {
  std::uint64_t bytes = 0, checksum = 0;  // base::checksum of what was read back
  double write_seconds = 0;               // until the last byte was handed to the system
  double check_seconds = 0;               // from then on, until all of it had been read back
};

enum class ReadBackBy : std::uint8_t {
  kAnotherThread,  // of a large file, while it is written: soonest done
  kTheSame,  // afterwards: the caller that computes beside it keeps the other processors, and the writing itself is a
             // plain one
};

// Writes a new file out of its parts, reads it back through the page cache and holds it against them, byte by byte. The
// reason is worded to follow the name of the file; the file stays in any case. cancelled: ends it early; may be null.
// Throws where memory is short.
Status write_checked(const std::string& path, const std::vector<std::string_view>& parts,
                     const std::atomic<bool>* cancelled, CheckedFile* file, ReadBackBy by = ReadBackBy::kAnotherThread);

}  // namespace finitude::capture
