// Calls that exchange values with other processes: what they write is no result of the calls on the tape.
#include <c10/util/thread_name.h>

#include "observe/distributed_names_torch.h"
#include "observe/tape_op_torch.h"
#include "observe/tape_recorder_torch.h"

namespace finitude::observe {
namespace {

template <typename Use>
void each_tensor_of(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor_of(item, use);
  }
}

// Calls of a backend that give no rank a value.
bool says_nothing(const std::string& name) {
  return name == "c10d::barrier" || name == "c10d::monitored_barrier_" || name == "c10d::check_for_nan";
}

// gloo calls operators of torch on threads of its own.
bool is_thread_of_backend() {
  thread_local const bool is = c10::getThreadName().starts_with("pt_gloo");
  return is;
}

}  // namespace

// Is the call a part of a collective operation that has been called before? It is made by a thread of the backend's,
// or, where the operation is waited for, copies a buffer of the backend's into what the operation was given.
bool TapeRecorder::is_of_backend(const TapeOp& op, c10::ArrayRef<c10::IValue> inputs) const {
  if (is_thread_of_backend()) return true;
  if (op.transparent || op.writes == 0 || exchanges_.empty()) return false;
  if (inputs.size() > op.num_args) inputs = inputs.slice(inputs.size() - op.num_args);
  bool reads = false, is = true;
  for (std::size_t i = 0; is && i < inputs.size(); ++i) {
    const bool written = i < 64 && ((op.writes >> i) & 1) != 0;
    each_tensor_of(inputs[i], [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = tensor.defined() ? tape_storage(*tensor.unsafeGetTensorImpl()) : nullptr;
      const auto found = storage == nullptr ? ids_.end() : ids_.find(storage);
      is = is && found != ids_.end() &&
           (written ? known_[found->second].state == Known::kFresh : known_[found->second].of_backend);
      reads |= !written;
    });
  }
  return is && reads;
}

// A collective operation may write any of its tensors, at some time until it is waited for: what they hold is
// put on the tape when they are read next, so that a replay needs no other process. is_inside: what a backend calls.
void TapeRecorder::exchange(const at::RecordFunction& fn, const TapeOp& op, bool is_inside) {
  for (const c10::IValue& input : fn.inputs()) {
    each_tensor_of(input, [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = tensor.defined() ? tape_storage(*tensor.unsafeGetTensorImpl()) : nullptr;
      if (storage == nullptr) return;
      const std::size_t before = known_.size();
      TapeUse use;
      use.storage = see(*storage);
      Known& known = known_[use.storage];
      if (is_inside && use.storage >= before) known.of_backend = true;
      // What is exchanged may be written at this moment, and nobody may read it before it is waited for.
      if (known.state != Known::kFresh || (!is_inside && !op.only_waits)) write(use, false);
      lose(use.storage);  // another process writes it
    });
  }
}

// What a replay of all ranks needs to issue it again. Called where what it reads is on the tape.
void TapeRecorder::note_exchange(const at::RecordFunction& fn, const TapeOp& op, TapePlaces::Where where) {
  if (says_nothing(op.name)) return;
  thread_local std::string written;
  written.clear();
  capture::WireWriter out(&written);
  c10::SmallVector<TapeUse, 4> uses;
  const auto storage = [&](c10::StorageImpl& s) { return see(s); };
  const auto generator = [](const at::Generator&) { return std::int64_t{-1}; };
  c10::ArrayRef<c10::IValue> inputs = fn.inputs();
  if (inputs.size() > op.num_args) inputs = inputs.slice(inputs.size() - op.num_args);
  out.var(inputs.size());
  bool known = true;
  for (std::size_t i = 0; known && i < inputs.size(); ++i) {
    if (const auto name = name_of_distributed(inputs[i])) {
      known = !name->empty();
      capture::Value value;
      value.kind = capture::Value::kString;
      value.text = *name;
      capture::write_value(out, value);
    } else {
      known = write_value(inputs[i], i, {storage, generator}, out, uses);
    }
  }
  capture::WireWriter event(&raw_.events);
  event.u8(static_cast<std::uint8_t>(capture::RawEvent::kExchange));
  event.var(at::RecordFunction::currentThreadId());
  event.text(op.name);
  event.var(where.place == capture::kNoPlace ? 0 : std::uint64_t{where.place} + 1);
  event.u8(where.of_backward);
  if (known) {
    event.raw(written.data(), written.size());
  } else {
    event.var(0);
  }
  ++events_;
}

}  // namespace finitude::observe
