// Writes a zip archive, in the form for files beyond 4 GiB whatever the size. Dates are those of the format's
// beginning, so that one content makes one archive. PKWARE APPNOTE 6.3.9, sections 4.3 and 4.5.3.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "archive/file_posix.h"
#include "finitude/status.h"

namespace finitude::archive {

class ZipWriter {
 public:
  // descriptor: an empty file that can be written to at any offset; it stays the caller's. cancelled: ends `add` with
  // kStopped; may be null.
  explicit ZipWriter(int descriptor, const std::atomic<bool>* cancelled = nullptr)
      : descriptor_(descriptor), cancelled_(cancelled) {}

  // An entry with this content, compressed by DEFLATE at its fastest: numbers hardly shrink. Failures to read have the
  // code of Region, failures to write kUnwritable; the archive is of no use after either.
  Status add(const std::string& name, const Region& content);
  // The directory, after the last entry.
  Status finish();

 private:
  Status write(std::uint64_t at, const std::string& bytes) const;

  int descriptor_;
  const std::atomic<bool>* cancelled_;
  std::uint64_t end_ = 0, entries_ = 0;
  std::string directory_;
};

}  // namespace finitude::archive
