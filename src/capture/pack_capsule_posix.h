// A capsule as one file, and back. docs/format/capsule.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "capture/packed_capsule.h"
#include "finitude/status.h"

namespace finitude::capture {

// Both write under another name next to the target, and give it its name at the end: it is there whole or not at all.
// Both first hold every file against its checksum. A failure that concerns the target has the code kUnwritable; every
// other reason is worded to follow the name of the source. cancelled: ends them early with kStopped; may be null.

// Writes the file `out` of the files that the capsule in `folder` lists, and of nothing else. Replaces a packed
// capsule, and nothing else.
Status pack_capsule(const std::string& folder, const std::string& out, const std::atomic<bool>* cancelled = nullptr);

// Makes `folder`, which must not be there, of a packed capsule that holds at most so many bytes in all.
Status unpack_capsule(const std::string& file, const std::string& folder, std::uint64_t most_bytes = kMaxUnpacked,
                      const std::atomic<bool>* cancelled = nullptr);

}  // namespace finitude::capture
