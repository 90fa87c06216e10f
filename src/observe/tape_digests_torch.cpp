// Digests of what recorded calls read and gave. With the recorder's mutex held, but for the two that take it.
#include <c10/util/SmallVector.h>

#include <utility>

#include "observe/tape_op_torch.h"
#include "observe/tape_recorder_torch.h"

namespace finitude::observe {

std::vector<CallDigest> TapeRecorder::take_digests() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(digests_, {});
}

bool TapeRecorder::writes(const c10::TensorImpl& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = ids_.find(tape_storage(tensor));
  return found != ids_.end() && (known_[found->second].written || known_[found->second].state == Known::kMade);
}

// written: the tensors that the call is about to write. They are the caller's until it ends.
std::size_t TapeRecorder::begin_digest(const TapeOp& op, record::OpId traced, c10::ArrayRef<c10::IValue> inputs,
                                       c10::SmallVectorImpl<const c10::TensorImpl*>* written) {
  for (std::size_t i = 0; i < inputs.size() && i < 64; ++i) {
    if (((op.writes >> i) & 1) == 0) continue;
    if (inputs[i].isTensor()) written->push_back(inputs[i].toTensor().unsafeGetTensorImpl());
    if (!inputs[i].isTensorList()) continue;
    for (const c10::IValue& item : inputs[i].toListRef()) written->push_back(item.toTensor().unsafeGetTensorImpl());
  }
  digests_.push_back(
      {traced, {op.name, op.overload}, false, op.writes, op.overwrites, input_digests(inputs, op.overwrites), {}});
  return digests_.size() - 1;
}

void TapeRecorder::end_digest(std::size_t number, c10::ArrayRef<c10::IValue> results,
                              const c10::SmallVectorImpl<const c10::TensorImpl*>& written) {
  if (number >= digests_.size()) return;
  CallDigest& digest = digests_[number];
  for (const c10::IValue& result : results) digest.outputs.push_back(value_digest(result));
  for (const c10::TensorImpl* impl : written) digest.outputs.push_back(value_digest(*impl));
  digest.ended = true;
}

}  // namespace finitude::observe
