// Calls of a tape while it is played: their tensors in the order of the tape, and the values in them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "capture/tape.h"
#include "compare/run.h"

namespace finitude::compare {

// What the comparison must know of an operator.
struct OperatorFacts {
  c10::OperatorHandle handle;
  std::uint64_t writes = 0;  // bit i: argument i is written
  bool random = false, allocates = false;
  std::vector<std::string> args, returns;
};
OperatorFacts facts_of(const c10::OperatorHandle& handle);

// Which tensors of a call are its inputs and outputs: numbers into the flat lists of its arguments and results.
struct Slots {
  struct Output {
    bool of_result = false;
    std::uint32_t at = 0;
  };
  std::vector<std::uint32_t> inputs;
  std::vector<Output> outputs;
};

// The call as far as the tape and the schema say; no values yet.
Call call_of(const capture::Tape& tape, const capture::Entry& entry, const OperatorFacts& facts, Slots* slots);

// Tensors in the order of capture::for_each_tensor: sparse ones as indices and values, undefined ones skipped.
std::vector<at::Tensor> flat(c10::ArrayRef<c10::IValue> values);
// The same values with other tensors in that order.
torch::jit::Stack with_tensors(c10::ArrayRef<c10::IValue> values, const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> outputs_of(const Slots& slots, const std::vector<at::Tensor>& arguments,
                                   const std::vector<at::Tensor>& results);

// In row-major order, conjugation and negation done.
at::Tensor plain(const at::Tensor& tensor);
// Statistics and checksum into `out`.
void measure(const at::Tensor& tensor, Tensor* out);

}  // namespace finitude::compare
