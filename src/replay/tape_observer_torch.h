// What may look on while a tape is played.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <c10/core/Storage.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

// A call about to be issued, or just come back. Arguments as its operator takes them, results as it gave
// them; what it writes lies in the arguments. Tensors are those of the replay: to be kept they are to be
// cloned.
struct PlayedCall {
  std::size_t index = 0;  // of the entry on the tape
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> arguments, results;
};

// Called by play() from the thread that plays, with no lock held, below autograd. What it throws ends the
// replay. Operators that it calls are not observed.
class PlayObserver {
 public:
  virtual ~PlayObserver() = default;
  // Are calls to be seen by the observers of this process (record functions) as well?
  virtual bool is_traced() const { return false; }
  // May put other arguments in the place of those on the tape, before all else.
  virtual void change(std::size_t /*index*/, const c10::FunctionSchema&, std::vector<c10::IValue>& /*arguments*/) {}
  // The results of the call, computed by the observer itself; nothing: the operator is called. They may have other
  // dtypes and strides than those on the tape. What the operator writes in its arguments is then to be written.
  virtual std::optional<std::vector<c10::IValue>> computed(const PlayedCall&) { return std::nullopt; }
  virtual void before(const PlayedCall&) {}
  // False: the replay ends here.
  virtual bool after(const PlayedCall&) { return true; }
  // Memory has got its content, and none of it was read so far: an input, or what entry `index` (kFill) wrote. May be
  // overwritten. Not where the tape is played in another dtype.
  virtual void given(capture::StorageId, c10::Storage&) {}
  virtual void filled(std::size_t /*index*/, c10::Storage&) {}
  // What the step came to; `index` counts Tape::outcomes.
  virtual void outcome(std::size_t /*index*/, const at::Tensor&) {}
};

}  // namespace finitude::replay
