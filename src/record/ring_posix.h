// The last few thousand steps, in a memory-mapped file that survives `kill -9` of the process (not of the machine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "record/ring_format.h"

namespace finitude::record {

// One writer: the thread that trains. push() is a few stores: no lock, no system call, no allocation, no failure.
// The file is as large as it will ever be, with all its blocks on disk, before the first push: a disk that fills up
// later cannot turn a store into SIGBUS. Only truncating the file under a running writer can; nobody else writes it.
class RingWriter {
 public:
  // `capacity` is rounded up to a power of two, at most kMaxRingCapacity. Where the file cannot be made, records go to
  // memory alone and why_no_file() says why. An existing file of that name is replaced, never written into: a reader
  // that has it mapped keeps the old one.
  explicit RingWriter(const std::string& path, std::uint64_t capacity = kDefaultRingCapacity) noexcept;
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  void push(const StepRecord& record) noexcept;

  // In the child of a fork, before it pushes: the ring is the parent's. From then on push() does nothing.
  void let_go() noexcept;

  bool on_file() const noexcept { return on_file_; }
  bool on() const noexcept { return slots_ != nullptr; }  // false: not even memory; push() does nothing
  const std::string& why_no_file() const noexcept { return why_; }
  std::uint64_t capacity() const noexcept { return mask_ + 1; }
  std::uint64_t pushed() const noexcept { return next_; }

  // The ring as bytes, for a reader in this process. Other threads may read while push() runs.
  std::span<const std::byte> bytes() const noexcept;

 private:
  bool map_file(const std::string& path) noexcept;
  void refuse(const char* what, int error) noexcept;

  RingHeader* header_ = nullptr;
  RingSlot* slots_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::uint64_t mask_ = 0, next_ = 0;
  bool on_file_ = false;
  std::string why_;
};

struct RingContents {
  std::uint32_t pid = 0;
  std::uint64_t capacity = 0, started_unix_ns = 0, started_ns = 0;
  std::vector<StepRecord> records;  // in order of step; those of one step in the order in which they were pushed
  std::uint64_t torn = 0;           // slots that held no whole record
  std::uint64_t overwritten = 0;    // older records that newer ones have replaced
};

// Reads a ring that may be anything: truncated, malicious, or being written at this moment. At most one pass over
// the bytes and `capacity` records of memory. False: it is no ring, and `error` says why.
bool read_ring(std::span<const std::byte> bytes, RingContents* contents, std::string* error);
// The same from a file, read into memory: a file that shrinks meanwhile is an error, not a signal.
bool read_ring_file(const std::string& path, RingContents* contents, std::string* error);

}  // namespace finitude::record
