#include "gate/shared_gradients_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/immortal.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/verdict_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

// What is set aside while the window of `own` runs again. `own` is not owned: it is compared only, and its optimizer
// is held by the caller of the step.
struct Aside {
  const OptimizerEntry* own = nullptr;
  std::uint64_t serial = 0, bad_since = 0;  // the last loss before, and that of `own`
  bool wake_on_backward = false;
  std::vector<std::pair<std::uint32_t, WindowState>> others;  // by ordinal
};

base::Immortal<Aside> the_aside;
Aside& aside() { return *the_aside; }

const c10::TensorImpl* impl_of(PyObject* parameter) {
  return is_tensor_object(parameter) ? THPVariable_Unpack(parameter).unsafeGetTensorImpl() : nullptr;
}

// (the number of the alarm that has reported all bad gradients of this optimizer, or 0; whether it names their birth)
std::pair<std::uint32_t, bool> reported_of(const OptimizerEntry& entry) {
  std::uint32_t number = 0;
  bool all = true, explained = true;
  for (const GradMark& mark : entry.marks) {
    if (mark.state <= GradMark::kClean) continue;
    all = all && mark.reported != 0;
    explained = explained && mark.explained;
    number = std::max(number, mark.reported);
  }
  return {all ? number : 0, all && number != 0 && explained};
}

OptimizerEntry* entry_or_error(PyObject* optimizer) {
  OptimizerEntry* entry = find_entry(optimizer);
  if (entry == nullptr) PyErr_SetString(PyExc_KeyError, "this optimizer is not watched");
  return entry;
}

// reported_step(optimizer) -> (number, explained)
PyObject* reported_of_window(PyObject*, PyObject* optimizer) {
  const OptimizerEntry* entry = entry_or_error(optimizer);
  if (entry == nullptr) return nullptr;
  const auto [number, explained] = reported_of(*entry);
  return Py_BuildValue("(IO)", static_cast<unsigned>(number), explained ? Py_True : Py_False);
}

// mark_others_reported(optimizer, number)
PyObject* report_others_of_window(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2) {
    PyErr_SetString(PyExc_TypeError, "mark_others_reported(optimizer, number)");
    return nullptr;
  }
  OptimizerEntry* entry = entry_or_error(args[0]);
  if (entry == nullptr) return nullptr;
  const unsigned long number = PyLong_AsUnsignedLong(args[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  report_others(*entry, static_cast<std::uint32_t>(number));
  Py_RETURN_NONE;
}

PyMethodDef shared_gradient_table[] = {
    {"reported_step", reported_of_window, METH_O, nullptr},
    {"mark_others_reported", reinterpret_cast<PyCFunction>(report_others_of_window), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

// Without this, one NaN in a shared graph would be an alarm and a second run at each optimizer below it. Parameters
// below the explained loss are explained too; others of the same backward are only reported.
// `reported` keeps weak references: the address of a gradient is not reused while one is here, and no memory is kept
// alive.
void report_others(OptimizerEntry& entry, std::uint32_t number) {
  std::unordered_set<const c10::TensorImpl*> explained;
  for (const LossNote& note : live().losses) {
    if (!note.bad || !in_window(entry, note)) continue;
    note.leaves.for_each([&](const c10::TensorImpl* leaf) { explained.insert(leaf); });
  }
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    if (index < entry.marks.size() && entry.marks[index].state > GradMark::kClean) explained.insert(impl_of(p));
  });
  for (const auto& other : live().optimizers) {
    if (!is_alive(*other) || !is_trained_here(*other)) continue;
    const bool same_backward = entry.bad_since != 0 && other->bad_since == entry.bad_since;
    std::erase_if(other->reported, [](const WindowState::Reported& reported) { return reported.grad.expired(); });
    for_each_parameter(other->self, [&](std::uint32_t index, PyObject* p) {
      if (index >= other->marks.size() || other->marks[index].state <= GradMark::kClean) return;
      GradMark& mark = other->marks[index];
      const bool is_explained = explained.contains(impl_of(p));
      if (is_explained || same_backward) {
        mark.reported = number;
        mark.explained = is_explained;
      }
      const at::Tensor* grad = gradient_of(p);
      if (mark.reported == 0 || grad == nullptr) return;
      if (grad->unsafeGetTensorImpl() !=
          mark.grad) {  // a second run took another way, and the gradients of the first one are back
        GradMark now = judge(*grad);
        if (now.state <= GradMark::kClean) return;
        now.reported = mark.reported;
        now.explained = mark.explained;
        mark = now;
      }
      std::erase_if(other->reported, [&](const WindowState::Reported& reported) { return reported.index == index; });
      const c10::weak_intrusive_ptr<c10::TensorImpl> weak(grad->getIntrusivePtr());
      other->reported.push_back({index, weak, mark.version, mark.reported, mark.explained});
    });
  }
}

// Copies the window state of all other optimizers. A second run executes the same script, so its backwards would count
// in their windows too. Rare: allocates.
void set_windows_aside(const OptimizerEntry* own) {
  Aside& a = aside();
  Live& l = live();
  a.own = own;
  a.serial = l.next_serial;
  a.bad_since = own != nullptr ? own->bad_since : 0;
  a.wake_on_backward = std::exchange(l.wake_on_backward, false);
  a.others.clear();
  for (const auto& entry : l.optimizers) {
    if (entry.get() != own) a.others.emplace_back(entry->ordinal, *entry);
  }
}

// Losses of the second run stay in the list, but count only for `own`, and not again where they belong to another one.
// Optimizers are found by ordinal, since some may have been made or freed meanwhile.
void put_windows_back(bool is_back) {
  Aside& a = aside();
  Live& l = live();
  if (is_back) {
    for (const auto& entry : l.optimizers) {
      if (entry.get() == a.own) {
        if (entry->bad_since != 0) entry->bad_since = a.bad_since;
        for (LossNote& note : l.losses) {
          if (note.serial <= a.serial) continue;
          note.second_run_of = entry->ordinal + 1;
          note.consumed = note.consumed || !owns(*entry, note);  // whose it is has answered in the first run
        }
      }
      for (auto& [ordinal, state] : a.others) {
        if (ordinal == entry->ordinal) static_cast<WindowState&>(*entry) = std::move(state);
      }
    }
  }
  l.wake_on_backward = l.wake_on_backward || a.wake_on_backward;
  a.others.clear();
  a.own = nullptr;
}

// False outside of a second run, and for a loss without leaves: it is finite, or on a device.
bool is_elsewhere(const LossNote& note) {
  const OptimizerEntry* own = aside().own;
  if (own == nullptr) return false;
  const auto owners = [&](bool own_wanted) {
    return note.leaves.any([&](const c10::TensorImpl* leaf) {
      const auto [first, last] = live().owner.equal_range(leaf);
      return std::any_of(first, last, [&](const auto& it) { return (it.second.first == own) == own_wanted; });
    });
  };
  return !owners(true) && owners(false);
}

PyMethodDef* shared_gradient_methods() { return shared_gradient_table; }

}  // namespace finitude::bindings
