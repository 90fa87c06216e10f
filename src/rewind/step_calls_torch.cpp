#include "rewind/step_calls_torch.h"

#include <algorithm>
#include <memory>

#include "base/immortal.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/second_run.h"
#include "gate/state_torch.h"
#include "gate/window_torch.h"
#include "pyhost/object_python.h"
#include "rewind/snapshot_torch.h"
#include "rewind/window_start_torch.h"

namespace finitude::bindings {
namespace {

// What a backward or a step changes of the gate's records and of the program. begin_again() saves it and end_again()
// puts it back, so that a second run leaves no mark on the first. Entries are saved by value, by their index in
// live().optimizers.
struct SetAside {
  RngState rng;
  BufferSnapshot buffers;
  Counters counters;
  std::vector<LossNote> losses;
  std::vector<OptimizerEntry> entries;
  std::uint64_t backward_serial = 0, left_out_serial = 0;
  bool scaled_pending = false, wake_on_backward = false;
};

struct Clipping {
  Object original, args, kwargs;  // a tuple, and a dict or nothing
  double norm_type = 0;
};

bool wanted = false;  // a unit has ended in this window

SetAside& set_aside() {
  static auto* aside = new SetAside();
  return *aside;
}

base::Immortal<std::vector<Clipping>> the_clippings;
std::vector<Clipping>& clippings() { return *the_clippings; }

// The gradients of the parameters, a list. Empty: a Python error is set. `parameters` may be any iterable, as for
// torch's own function; one that gives each thing once is used up by the first run already.
Object gradients_of(PyObject* parameters) {
  const Object list = Object::take(PyList_New(0)), iterator = Object::take(PyObject_GetIter(parameters));
  if (!list || !iterator) return {};
  while (const Object p = Object::take(PyIter_Next(iterator.get()))) {
    const Object gradient = Object::take(PyObject_GetAttrString(p.get(), "grad"));
    if (!gradient) return {};
    if (gradient.get() != Py_None && PyList_Append(list.get(), gradient.get()) != 0) return {};
  }
  return PyErr_Occurred() != nullptr ? Object() : list;
}

// The arguments (parameters, largest norm, norm, ...) with the norm of the gradients that there are now: the second run
// must not use the number that the first run computed. Empty: a Python error is set.
Object with_norm_of_now(const Clipping& clipping) {
  const Object gradients = gradients_of(PyTuple_GET_ITEM(clipping.args.get(), 0));
  const Object utils = Object::take(PyImport_ImportModule("torch.nn.utils"));
  if (!gradients || !utils) return {};
  Object norm =
      Object::take(PyObject_CallMethod(utils.get(), "get_total_norm", "Od", gradients.get(), clipping.norm_type));
  Object args = Object::take(PyTuple_GetSlice(clipping.args.get(), 0, 2));
  if (!norm || !args) return {};
  const Object rest = Object::take(PyTuple_GetSlice(clipping.args.get(), 3, PyTuple_GET_SIZE(clipping.args.get())));
  const Object last = Object::take(PyTuple_Pack(1, norm.get()));
  if (!rest || !last) return {};
  args = Object::take(PySequence_Concat(args.get(), last.get()));
  return args ? Object::take(PySequence_Concat(args.get(), rest.get())) : Object();
}

}  // namespace

void forget_clipping() noexcept {
  wanted = false;
  clippings().clear();
}

void begin_again() {
  Live& l = live();
  SetAside& aside = set_aside();
  // First, so that nothing of what follows counts as a step of the program.
  set_units_run_again(true);
  take_rng(&aside.rng);
  aside.buffers = buffer_snapshot();
  aside.buffers.take();
  aside.counters = l.counters;
  aside.losses = l.losses;
  aside.backward_serial = l.backward_serial;
  aside.left_out_serial = l.left_out_serial;
  aside.scaled_pending = l.scaled_pending;
  aside.wake_on_backward = l.wake_on_backward;
  aside.entries.clear();
  for (const auto& entry : l.optimizers) aside.entries.push_back(*entry);
  for (const auto& entry : l.optimizers) {
    entry->undo.reset();  // a copy of a step that is under way stays what it is
    entry->undo_held = false;
    close_window(*entry);
  }
  l.losses.clear();
  l.scaled_pending = l.wake_on_backward = false;
  // The unit is called with the buffers of the window's start; those of now are in `aside`.
  buffer_snapshot().restore();
}

void end_again() {
  // Cleanup code calls it in any case, also where nothing has begun.
  if (!units_run_again()) return;
  set_units_run_again(false);
  Live& l = live();
  SetAside& aside = set_aside();
  l.counters = aside.counters;
  l.losses = std::move(aside.losses);
  l.backward_serial = aside.backward_serial;
  l.left_out_serial = aside.left_out_serial;
  l.scaled_pending = aside.scaled_pending;
  l.wake_on_backward = aside.wake_on_backward;
  // By ordinal: an optimizer that the unit made or dropped moves the entries behind it.
  for (OptimizerEntry& saved : aside.entries) {
    const auto found = std::find_if(l.optimizers.begin(), l.optimizers.end(),
                                    [&](const auto& entry) { return entry->ordinal == saved.ordinal; });
    if (found != l.optimizers.end()) **found = std::move(saved);
  }
  aside.entries.clear();
  aside.losses.clear();
  restore_rng(aside.rng);
  aside.buffers.restore();
}

// A few parameters are enough to see that a unit has run backward; all of them would cost a walk over the model. Dead
// optimizers are skipped, as their entries outlive them.
bool gradients_present() {
  bool found = false;
  for (const auto& entry : live().optimizers) {
    if (!is_alive(*entry)) continue;
    for_first_parameters(entry->self, OptimizerEntry::kProbes,
                         [&](std::uint32_t, PyObject* p) { found = found || gradient_of(p) != nullptr; });
  }
  return found;
}

bool clip_again() {
  // A copy: the calls below run code of torch and of the program, which may change the list.
  const std::vector<Clipping> list = clippings();
  for (const Clipping& c : list) {
    const Object args = c.norm_type > 0 ? with_norm_of_now(c) : c.args;
    if (!args || !Object::take(PyObject_Call(c.original.get(), args.get(), c.kwargs.get()))) return false;
  }
  return true;
}

void unit_ended() {
  clippings().clear();
  wanted = true;
}

void note_clipping(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, double norm_type) {
  // The arguments are borrowed and may die when the clipping returns, so they are packed into a tuple of our own.
  if (!wanted || units_run_again()) return;
  Object positional = Object::take(PyTuple_New(nargs)), named;
  bool is_whole = static_cast<bool>(positional);
  for (Py_ssize_t i = 0; is_whole && i < nargs; ++i)
    PyTuple_SET_ITEM(positional.get(), i, Object::share(args[i]).release());
  if (is_whole && kwnames != nullptr) {
    named = Object::take(PyDict_New());
    is_whole = static_cast<bool>(named);
    for (Py_ssize_t i = 0; is_whole && i < PyTuple_GET_SIZE(kwnames); ++i)
      is_whole = PyDict_SetItem(named.get(), PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0;
  }
  if (!is_whole) {  // no memory: called again without it the unit does not come to the same bits, which is seen then
    PyErr_Clear();
    return;
  }
  clippings().push_back({Object::share(original), std::move(positional), std::move(named), norm_type});
}

}  // namespace finitude::bindings
