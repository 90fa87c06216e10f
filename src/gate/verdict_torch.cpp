#include "gate/verdict_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "gate/marks_torch.h"
#include "gate/param_groups_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {

// -1 is the placeholder until after_backward knows the number.
std::uint32_t micro_batch_of(const LossNote& note) noexcept {
  return note.micro_batch == static_cast<std::uint32_t>(-1) ? 0 : note.micro_batch;
}

namespace {

// Two threads that train are two programs: a loss that one gives to backward does not concern the optimizers of the
// other.
bool is_of_other_training(const OptimizerEntry& entry, const LossNote& note) noexcept {
  const Live& l = live();
  if (!l.threads_take_turns || note.thread == entry.thread) return false;
  return std::any_of(l.optimizers.begin(), l.optimizers.end(),
                     [&](const auto& other) { return other->thread == note.thread; });
}

}  // namespace

bool in_window(const OptimizerEntry& entry, const LossNote& note) noexcept {
  return note.serial > entry.window_start && !note.in_closure &&
         (note.second_run_of == 0 || note.second_run_of == entry.ordinal + 1) && !is_of_other_training(entry, note);
}

bool was_bad_at(const OptimizerEntry& entry, const LossNote& note) noexcept {
  return std::find(note.bad_at.begin(), note.bad_at.end(), entry.ordinal) != note.bad_at.end();
}

bool owns(OptimizerEntry& entry, const LossNote& note) {
  if (!note.bad || note.on_device) return true;  // whose a finite loss is, is not kept
  const bool is_clean = std::none_of(entry.marks.begin(), entry.marks.end(),
                                     [](const GradMark& mark) { return mark.state > GradMark::kClean; });
  // What that backward wrote here is gone, as where a loss passes through a model that is not its own.
  if (is_clean && was_bad_at(entry, note) && stands_elsewhere(entry, note)) return false;
  // Training restarts with another optimizer: this loss and what it left were the affair of the one before.
  if (is_clean && note.serial <= entry.made_at && !note.bad_at.empty()) return false;
  bool owned = false;
  for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) {
    owned |= is_tensor_object(p) && note.leaves.contains(THPVariable_Unpack(p).unsafeGetTensorImpl());
  });
  // The leaves may be temporary tensors instead of the parameters, whose gradients are passed on after backward: FSDP2
  // gathers whole parameters from its shards.
  return owned ||
         (!is_clean && !note.leaves.any([](const c10::TensorImpl* leaf) { return live().owner.contains(leaf); }));
}

// Called by the Python side, for a window that is not plainly healthy: allocates. The rules are in src/decide, which
// sees plain data only and is tested without torch.
decide::Verdict verdict_of(OptimizerEntry& entry, bool buffers_turned_nan) {
  std::vector<decide::LossFact> losses;
  for (const LossNote& note : live().losses) {
    if (!in_window(entry, note)) continue;
    losses.push_back(
        {note.bad && !note.consumed, owns(entry, note), note.grad_bad, was_bad_at(entry, note), micro_batch_of(note)});
  }
  decide::WindowFacts facts;
  facts.losses = losses;
  for (const GradMark& mark : entry.marks) {
    facts.bad_gradients += mark.state > GradMark::kClean;
    facts.clean_gradients += mark.state == GradMark::kClean;
  }
  facts.parameters = static_cast<std::uint32_t>(entry.marks.size());
  facts.laundered = entry.laundered ? 1 : 0;
  facts.dropped = entry.dropped;
  facts.norm_overflow = entry.norm_overflow;
  facts.buffers_turned_nan = buffers_turned_nan;
  return decide::judge(facts);
}

}  // namespace finitude::bindings
