// What of a large input a step reads: some rows of a table.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

#include "capture/tape.h"

namespace finitude::observe {

// The argument of an operator with numbers of the rows that it reads of its first argument; -1: it reads all of that.
int picked_by(std::string_view op);

// The bytes of the storage that a call of an operator which picks rows reads of its first argument. False: they cannot
// be reported, or are many; the whole is read then. Reads the numbers, calls no operator; only of those on the CPU.
bool picked_rows(c10::ArrayRef<c10::IValue> inputs, int picked_by, std::vector<capture::ByteRange>* rows);

// In order and apart, those close to each other as one.
void tidy(std::vector<capture::ByteRange>& parts);

// The parts that are read of an input, as long as they are few and small against it.
class ReadParts {
 public:
  explicit ReadParts(std::uint64_t size_bytes) : size_bytes_(size_bytes) {}
  // False: too much of it is read.
  bool add(capture::ByteRange part);
  // Relative to `begin`.
  std::vector<capture::ByteRange> take(std::uint64_t begin);

 private:
  std::uint64_t size_bytes_ = 0;
  std::vector<capture::ByteRange> parts_;
  std::size_t tidied_ = 0;  // how many there were when they were in order last
};

}  // namespace finitude::observe
