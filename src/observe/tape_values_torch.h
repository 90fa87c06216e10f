// Arguments and results of an operator, written down for the tape without a reference to any of them.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <utility>

#include "capture/tape_values.h"

namespace finitude::observe {

// Memory that a value shows.
struct TapeUse {
  capture::StorageId storage = capture::kNoStorage;
  std::size_t arg = 0;
  std::int64_t begin = 0, end = 0;  // bytes of the storage
  bool dense = false;               // all of them
};

// The memory of a tensor that has a place on a tape; null where it has none, or none of its own.
c10::StorageImpl* tape_storage(const c10::TensorImpl& tensor);

// Numbers for storages and generators. A generator that cannot be replayed has none: -1.
struct TapeNames {
  c10::function_ref<capture::StorageId(c10::StorageImpl&)> storage;
  c10::function_ref<std::int64_t(const at::Generator&)> generator;
};

// False where a value has no place on a tape: memory that cannot be copied (is_recorded_device), a wrapper of
// torch.func, a subclass, a symbolic size. Sparse COO tensors are reported by their parts. `arg` goes into the uses.
bool write_value(const c10::IValue& value, std::size_t arg, const TapeNames& names, capture::WireWriter& out,
                 c10::SmallVectorImpl<TapeUse>& uses);

// The three below read the values; those on a device are copied for it, so give them a copy (on_host) where more than
// one is wanted. Of the values in row-major order; of a sparse tensor, of its parts. 0 where there is nothing to read.
std::uint64_t tape_checksum(const at::Tensor& tensor);
// Its values that are not finite; not known where there is nothing to read.
capture::Flaws tape_flaws(const at::Tensor& tensor);
// Outcome::sample_every and ::sample; {0, ""} of what is not dense.
std::pair<std::uint64_t, std::string> tape_sample(const at::Tensor& tensor);

}  // namespace finitude::observe
