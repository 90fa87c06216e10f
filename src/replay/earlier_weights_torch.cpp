#include "replay/earlier_weights_torch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "observe/tensor_view_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

using capture::Storage;
using capture::StorageId;

class EarlierWeights : public PlayObserver {
 public:
  EarlierWeights(const capture::Tape& tape, const LastUpdate& update, double share) : share_(share) {
    std::map<std::string, const LastUpdate::Change*> by_name;
    for (const LastUpdate::Change& change : update.changes) by_name[change.name] = &change;
    for (StorageId id = 0; id < tape.storages.size(); ++id) {
      const Storage& storage = tape.storages[id];
      if (storage.kind != "parameter" || storage.origin != Storage::kInput) continue;
      const auto found = by_name.find(storage.name);
      // Of a part of it, or of several parameters in one storage, nobody says where they lie.
      observe::TensorView view;
      if (found == by_name.end() || !observe::view_of(*found->second->parameter.unsafeGetTensorImpl(), &view) ||
          found->second->parameter.storage().nbytes() != storage.size_bytes ||
          found->second->parameter.numel() * found->second->parameter.element_size() != storage.size_bytes) {
        why_not = "the last update of " + storage.name + " is not known";
        return;
      }
      changes_[id] = found->second;
    }
    if (changes_.empty()) why_not = "the step reads no parameter whose last update is known";
  }

  void given(StorageId id, c10::Storage& storage) override {
    const auto found = changes_.find(id);
    if (found == changes_.end()) return;
    const at::Tensor& now = found->second->parameter;
    if (std::memcmp(storage.data(), now.storage().data(), storage.nbytes()) != 0)
      why_not = "the weights are no longer those of the step";
    at::Tensor values = found->second->before;
    if (share_ != 0) values = values + (now - values) * share_;
    at::Tensor into = at::empty({0}, now.options());
    into.set_(storage, 0, now.sizes(), now.strides());
    into.copy_(values);
  }

  std::string why_not;

 private:
  const double share_;
  std::map<StorageId, const LastUpdate::Change*> changes_;
};

}  // namespace

StepTrial play_on_earlier_weights(const capture::Tape& tape, const LastUpdate& update, double share) {
  StepTrial trial;
  trial.why_not = update.why_not;
  if (!trial.why_not.empty()) return trial;
  EarlierWeights weights(tape, update, share);
  trial.why_not = weights.why_not;
  if (!trial.why_not.empty()) return trial;
  const Played played = play(tape, {}, &weights);
  trial.seconds = played.seconds;
  trial.why_not = !played.missing.empty() ? played.missing.front() : played.why_not;
  if (trial.why_not.empty()) trial.why_not = weights.why_not;
  trial.ran = trial.why_not.empty();
  trial.bad = played.bad();
  return trial;
}

double relative_size(const LastUpdate& update) {
  const at::NoGradGuard no_grad;
  std::vector<double> matrices, all;
  for (const LastUpdate::Change& change : update.changes) {
    if (!change.before.is_floating_point() || change.before.numel() == 0) continue;
    const at::Tensor before = change.before.to(at::kDouble);
    const double size = before.square().mean().sqrt().item<double>();
    const double moved = (change.parameter.to(at::kDouble) - before).square().mean().sqrt().item<double>();
    if (!(size > 0) || !std::isfinite(moved)) continue;
    all.push_back(moved / size);
    if (change.before.dim() >= 2) matrices.push_back(moved / size);
  }
  std::vector<double>& of = matrices.empty() ? all : matrices;
  if (of.empty()) return 0;
  const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::ranges::nth_element(of, middle);
  return *middle;
}

}  // namespace finitude::replay
