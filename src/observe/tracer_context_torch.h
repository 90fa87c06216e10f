// What the tracer keeps of an operator from its beginning to its end, and what its thread is inside of.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "observe/call_copy_torch.h"
#include "observe/nested_writes.h"
#include "observe/op_info_torch.h"
#include "observe/open_calls.h"
#include "observe/seen_torch.h"
#include "observe/tracer_torch.h"
#include "record/kept_values.h"

namespace finitude::observe {

// Of this thread. Ends with it.
OpenCalls& open_calls() noexcept;

// An input whose health was known without a look at it.
struct Recalled {
  std::size_t index = 0;  // of the op's inputs
  const void* memory = nullptr;
  const c10::TensorImpl* tensor = nullptr;
  std::optional<WeakTensor> weakly;  // nothing: the op may change it, and has left a copy
};

// Owned by the RecordFunction of the operator, which ends on the thread that it began on. No reference to a tensor that
// the program has: what is kept is weak, or a copy.
struct Tracer::Context : at::ObserverContext {
  record::EventSink::Token token;
  const OpInfo* info = nullptr;
  std::vector<Written> written;
  std::optional<HeldCall> call;
  std::vector<Recalled> recalled;
  std::vector<Span> in_doubt;  // that the op may have written
  std::vector<void*> input_memory;
  std::optional<c10::Device> device;  // that it reads from
  bool is_node = false, inputs_nan = false, inputs_inf = false;
  bool nested = false;                       // in another operator, node or custom Function
  bool in_kernel = false;                    // in an operator that is no composition of others
  bool keeps = false, keeps_values = false;  // a dump wants checksums of it, and values too
  record::KeptCall kept;
  void saw(const sense::Health& health) { inputs_nan |= health.nan != 0, inputs_inf |= health.inf() != 0; }
};

}  // namespace finitude::observe
