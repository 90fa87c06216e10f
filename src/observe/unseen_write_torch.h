// Writes that no operator made, as the tracer finds them: see record/unseen_write.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "observe/call_copy_torch.h"
#include "observe/seen_torch.h"

namespace finitude::observe {

struct Places;

// Whether the tracer looks for them: then memory is looked at each time that an operator reads it, also where none is
// known to have written it since the last time. For one step, and none that is healthy; the end of the trace is the end
// of it.
class UnseenWrites {
 public:
  std::atomic<bool> on = false;

  // Code that is no operator of PyTorch's has run, and may have written any memory: what was known of it proves
  // nothing.
  void code_of_others() { ++runs_; }
  // The generation under which KnownHealth keeps what proves something.
  std::uint64_t since(std::uint64_t generation) const { return on ? generation + (runs_ << 32) : generation; }

 private:
  std::atomic<std::uint64_t> runs_ = 0;
};
UnseenWrites& unseen_writes() noexcept;

// An operator of a library, a custom Function, or a node that PyTorch did not generate. By its name without overload.
bool may_run_code_of_others(std::string_view name, bool is_node) noexcept;

// The values of this memory as they were looked at last; false: nobody has, or an operator has written there since.
bool health_known(KnownHealth& known, std::uint64_t generation, const c10::TensorImpl& tensor,
                  sense::Health* health) noexcept;

// `seen`: a fresh look at memory that held `before`. Is it sound, are there other values, and is it torch's own memory
// that nobody else is known to share (the program has it as no NumPy array, and no other process has it)? reads_saved:
// a node of backward reads what forward saved; then nobody may write it, whoever shares it.
bool is_unseen_write(const at::Tensor& tensor, const record::SeenTensor& seen, const sense::Health& before,
                     bool reads_saved) noexcept;

// Kernels that torch.compile wrote are no operators, and they reuse memory.
bool is_of_compiler(const Places* places);

struct UnseenWrite {
  record::SeenTensor before, after;
  std::shared_ptr<CapturedCall> copy;  // what the memory holds now, as its only argument; null: too large
  std::size_t size_bytes = 0;          // of the copy
};
UnseenWrite unseen_write(const at::Tensor& tensor, const record::SeenTensor& seen, const sense::Health& before);
// The op that represents it in the trace, right before its reader.
record::BeginOp begin_of(const UnseenWrite& write, const record::Op& reader, std::uint64_t generation);

}  // namespace finitude::observe
