// Bytes of a file, or of memory, read where they are asked for: what lies beyond the end is a failure, never a signal
// as with mapped memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "finitude/status.h"

namespace finitude::archive {

// An open file, read by any number of threads.
class File {
 public:
  static Result<std::shared_ptr<const File>> open(const std::string& path);
  // These bytes, as if they were a file's.
  static std::shared_ptr<const File> of_bytes(std::string bytes);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t bytes() const noexcept { return bytes_; }
  // All of them or a failure. The reason is worded to follow the name of the file.
  Status read(std::uint64_t offset, void* into, std::size_t size_bytes) const;

 private:
  File(int descriptor, std::uint64_t bytes) : descriptor_(descriptor), bytes_(bytes) {}
  explicit File(std::string memory) : descriptor_(-1), bytes_(memory.size()), memory_(std::move(memory)) {}
  int descriptor_;  // -1: the bytes are in memory_
  std::uint64_t bytes_;
  std::string memory_;
};

// A part of a file that is taken for a file of its own.
struct Region {
  std::shared_ptr<const File> file;
  std::uint64_t offset = 0, bytes = 0;

  // Offsets count from the beginning of the region.
  Status read(std::uint64_t at, void* into, std::size_t size_bytes) const;
  // The part of it, or a failure where it has no such part.
  Result<Region> part(std::uint64_t at, std::uint64_t size_bytes) const;
  // All of it, if it is at most so long.
  Status read_all(std::uint64_t most_bytes, std::string* into) const;
};

}  // namespace finitude::archive
