// The memory of a tape that is being played: storages by their numbers, and tensors in them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

class TapeMemory {
 public:
  explicit TapeMemory(const capture::Tape& tape);

  // Throw c10::Error where the tape asks for what cannot be.
  c10::IValue argument(const capture::Value& value, const c10::TypePtr& type,
                       const std::vector<at::Generator>& generators);
  at::Tensor tensor(const capture::Value& value);
  void fill(capture::StorageId id, std::uint64_t offset, const std::string& bytes);
  // What a call gave back becomes the memory that it was on the tape. The reason where it is not of that
  // form.
  std::string bind(const capture::Value& value, const c10::IValue& result);
  // The storages whose last use is entry `index` go.
  void after_entry(std::size_t index);

 private:
  at::Tensor dense(const capture::TensorRef& ref);
  c10::Storage& storage(capture::StorageId id);
  std::string bind_dense(const capture::TensorRef& ref, const at::Tensor& tensor);

  const capture::Tape& tape_;
  std::vector<c10::Storage> storages_;
  std::vector<std::vector<capture::StorageId>> last_used_;  // by entry
};

}  // namespace finitude::replay
