#include "gate/marks_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/tensor_subclass_torch.h"

namespace finitude::bindings {
namespace {

// Borrowed: valid while the parameter lives.
const c10::TensorImpl* impl_of(PyObject* parameter) {
  return is_tensor_object(parameter) ? THPVariable_Unpack(parameter).unsafeGetTensorImpl() : nullptr;
}

// Visits the parameters of an optimizer whose gradients were found to be bad and still are. Reads them again: the
// script may have zeroed them since. Only those with a bad mark, so that a healthy step reads nothing.
template <typename Visit>
void for_each_standing(const OptimizerEntry& entry, Visit&& visit) {
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    if (index >= entry.marks.size() || entry.marks[index].state <= GradMark::kClean) return;
    const at::Tensor* grad = gradient_of(p);
    if (grad != nullptr && judge(*grad).state > GradMark::kClean) visit(impl_of(p));
  });
}

}  // namespace

// A gradient that an alarm has reported keeps the number of that alarm (`reported`) over this reading, else the same
// NaN would be a second alarm after each backward that adds to it.
bool judge_again(OptimizerEntry& entry, std::size_t index, const at::Tensor& gradient, bool after_backward) {
  GradMark& mark = entry.marks[index];
  const GradMark before = mark;
  mark = judge(gradient);
  mark.is_unscaled = entry.is_unscaled;
  if (mark.state <= GradMark::kClean) return !note_unread(gradient);
  // A new gradient may lie where the old one lay; only one that was added to has counted on.
  if (before.reported != 0 && before.grad == mark.grad && (!after_backward || mark.version == before.version + 1)) {
    mark.reported = before.reported;
    mark.explained = before.explained;
    return true;
  }
  // A veto gives gradients back, and close_window has cleared the marks. lock() shows that the tensor is the same one
  // and not another at its address.
  for (const WindowState::Reported& reported : entry.reported) {
    if (reported.index != index || reported.grad.lock().get() != mark.grad) continue;
    if (mark.version != reported.version && (!after_backward || mark.version != reported.version + 1)) continue;
    mark.reported = reported.number;
    mark.explained = reported.explained;
  }
  return true;
}

// `bad_since` joins optimizers whose gradients became bad in the same backward: one of them is judged, see
// stands_elsewhere.
void note_bad_marks(OptimizerEntry& entry, bool loss_is_bad) {
  Live& l = live();
  const bool any = std::any_of(entry.marks.begin(), entry.marks.end(),
                               [](const GradMark& mark) { return mark.state > GradMark::kClean; });
  if (!any) return;
  if (entry.bad_since == 0) entry.bad_since = l.next_serial;
  if (!loss_is_bad) return;
  LossNote& note = l.losses.back();
  note.bad_at.push_back(entry.ordinal);
  // What an alarm said of an earlier loss says nothing of this one.
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    if (index >= entry.marks.size() || entry.marks[index].reported == 0 || !note.leaves.contains(impl_of(p))) return;
    entry.marks[index].reported = 0;
    entry.marks[index].explained = false;
    entry.bad_since = l.next_serial;
  });
}

bool stands_elsewhere(const OptimizerEntry& entry) {
  if (entry.bad_since == 0) return false;
  bool stands = false;
  for (const auto& other : live().optimizers) {
    if (other.get() == &entry || other->bad_since != entry.bad_since || !is_alive(*other) || !is_trained_here(*other))
      continue;
    for_each_standing(*other, [&](const c10::TensorImpl*) { stands = true; });
  }
  return stands;
}

bool stands_elsewhere(const OptimizerEntry& entry, const LossNote& note) {
  bool stands = false;
  for (const auto& other : live().optimizers) {
    if (other.get() == &entry || !is_alive(*other) || !is_trained_here(*other)) continue;
    for_each_standing(*other, [&](const c10::TensorImpl* p) { stands = stands || note.leaves.contains(p); });
  }
  return stands;
}

// Called for each .data and numpy() of a plain tensor, so it has to be cheap: most are not gradients, and a tensor that
// requires grad is skipped. A clean mark becomes "unseen", which makes the step read the gradient again.
void gradient_escapes(const at::Tensor& tensor) noexcept {
  if (tensor.requires_grad()) return;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // A program goes over its gradients in order: the search begins behind the one that was found last.
  static std::size_t last = 0;
  for (const auto& entry : live().optimizers) {
    const std::size_t count = entry->marks.size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = (last + 1 + i) % count;
      GradMark& mark = entry->marks[at];
      if (mark.grad != impl) continue;
      if (mark.state == GradMark::kClean) mark.state = GradMark::kUnseen;
      last = at;
      break;  // an optimizer that shares it has a mark of its own
    }
  }
}

}  // namespace finitude::bindings
