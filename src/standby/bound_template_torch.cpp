#include "standby/bound_template_torch.h"

#include <tuple>

#include "observe/known_health.h"
#include "observe/seen_torch.h"
#include "observe/tape_values_torch.h"

namespace finitude::bindings {
namespace {

// Leaked on purpose: it holds tensors, which must not be freed while the process ends.
std::unique_ptr<TemplateInHand>& in_hand() {
  static auto* const hand = new std::unique_ptr<TemplateInHand>();
  return *hand;
}

}  // namespace

TemplateInHand* template_in_hand() noexcept { return in_hand().get(); }
void take_template_in_hand(std::unique_ptr<TemplateInHand> hand) { in_hand() = std::move(hand); }
void put_template_down() noexcept { in_hand().reset(); }

// By the address of the memory as it is in this step. The addresses on the tape are those of the recorded step.
// Borrowed; null for memory that the tape does not read or make.
capture::Storage* TemplateInHand::storage_of(const at::Tensor& tensor) const {
  const auto it = memory_.find(observe::tape_storage(*tensor.unsafeGetTensorImpl()));
  return it == memory_.end() ? nullptr : &tape_->storages[it->second];
}

// Replaces what the recorded step came to by what this one came to: the replay is compared with it bit by bit. The
// tensor is held, so that its address remains its own until it is named.
void TemplateInHand::know_outcome(std::size_t index, const at::Tensor& tensor) {
  capture::Outcome& outcome = tape_->outcomes[index];
  outcome.checksum = observe::tape_checksum(tensor);
  outcome.flaws = observe::tape_flaws(tensor);
  std::tie(outcome.sample_every, outcome.sample) = observe::tape_sample(tensor);
  outcomes_.emplace_back(index, tensor);
  if (outcome.value.kind == capture::Value::kTensor && tensor.layout() == c10::kStrided)
    know(observe::tape_storage(*tensor.unsafeGetTensorImpl()), outcome.value.tensors[0].storage);
}

bool TemplateInHand::reads(const at::Tensor& tensor) const { return storage_of(tensor) != nullptr; }

// The first name stays, as memory may be reached under several names.
void TemplateInHand::name_on_tape(const at::Tensor& tensor, const std::string& kind, const std::string& name) {
  capture::Storage* const storage = storage_of(tensor);
  if (storage == nullptr || !storage->name.empty()) return;
  storage->kind = kind;
  storage->name = name;
}

void TemplateInHand::name_in_trace(const at::Tensor& tensor, record::Origin origin, const std::string& name) {
  const capture::Storage* const storage = storage_of(tensor);
  if (storage == nullptr || storage->traced >= trace.storages.size()) return;
  trace.storages[storage->traced].origin = origin;
  trace.storages[storage->traced].name = name;
}

// Only names an outcome: its value is known from know_outcome(). False: the tape does not come to this tensor.
bool TemplateInHand::add_outcome(const std::string& kind, const std::string& name, const at::Tensor& tensor) {
  for (const auto& [index, value] : outcomes_) {
    capture::Outcome& outcome = tape_->outcomes[index];
    if (outcome.kind != kind || value.unsafeGetTensorImpl() != tensor.unsafeGetTensorImpl()) continue;
    outcome.name = name;
    return true;
  }
  return false;
}

// A sink has to be a tensor that the tape computes. A tensor of this step has other memory than in the recorded step,
// so its range is moved to the place of the recorded one; the search for births follows these ranges. Where no outcome
// fits, lacks_sink says that the template does not explain the alarm.
void TemplateInHand::add_sink(const std::string& kind, const std::string& name, const at::Tensor& tensor) {
  const c10::StorageImpl* const memory = observe::tape_storage(*tensor.unsafeGetTensorImpl());
  for (const auto& [index, value] : outcomes_) {
    const capture::Outcome& outcome = tape_->outcomes[index];
    if (outcome.kind != kind || observe::tape_storage(*value.unsafeGetTensorImpl()) != memory ||
        outcome.value.tensors.size() != 1)
      continue;
    const capture::TensorRef& ref = outcome.value.tensors[0];
    const capture::Storage& storage = tape_->storages[ref.storage];
    if (storage.traced >= trace.storages.size()) break;
    observe::KnownHealth known;
    record::TensorUse use = observe::Eye(known, 0).see(*tensor.unsafeGetTensorImpl(), observe::Look::kFresh).use;
    const std::int64_t span = use.end - use.begin;
    use.storage = storage.traced;
    use.begin = ref.offset * static_cast<std::int64_t>(capture::item_bytes(ref.dtype)) +
                static_cast<std::int64_t>(storage.traced_begin);
    use.end = use.begin + span;
    trace.sinks.push_back({kind, name, std::move(use), record::kNone, 0});
    return;
  }
  lacks_sink = true;
}

}  // namespace finitude::bindings
