// What a call read and made, in one number for each value. The number depends on the position of every byte.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <vector>

#include "capture/raw_tape.h"
#include "record/trace.h"

namespace finitude::observe {

struct CallDigest {
  record::OpId traced = record::kNone;  // as capture::Entry::traced
  capture::Operator name;
  bool ended = false;
  std::uint64_t writes = 0, overwrites = 0;  // bit i: argument i is written; without being read
  std::vector<std::uint64_t> inputs;         // by argument; 0 of one that the call overwrites
  std::vector<std::uint64_t> outputs;        // of each result, then of each written argument
};

// 0 of a value without tensors. Of memory on the CPU; reads all of it. Calls no operator and may be called with locks
// held, by any thread.
std::uint64_t value_digest(const c10::IValue& value);
std::uint64_t value_digest(const c10::TensorImpl& tensor);
// By argument. overwrites: bit i: argument i is overwritten as a whole, so what it held does not count.
std::vector<std::uint64_t> input_digests(c10::ArrayRef<c10::IValue> arguments, std::uint64_t overwrites);

}  // namespace finitude::observe
