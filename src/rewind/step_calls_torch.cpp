#include "rewind/step_calls_torch.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>

#include "base/immortal.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/second_run.h"
#include "gate/state_torch.h"
#include "gate/window_torch.h"
#include "rewind/rewind_torch.h"
#include "rewind/snapshot_torch.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;

// All that a backward or a step changes of what was noted, so that a second run leaves no mark on the first.
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
  py::object original, args, kwargs;
  double norm_type = 0;
};

bool wanted = false;  // a unit has ended in this window

SetAside& set_aside() {
  static auto* aside = new SetAside();
  return *aside;
}

base::Immortal<std::vector<Clipping>> the_clippings;
std::vector<Clipping>& clippings() { return *the_clippings; }

// The arguments (parameters, largest norm, norm) with the norm of the gradients that are there now.
py::object with_norm_of_now(const Clipping& clipping) {
  py::list args(clipping.args), gradients;
  for (const py::handle p : args[0]) {
    if (py::object gradient = p.attr("grad"); !gradient.is_none()) gradients.append(std::move(gradient));
  }
  args[2] = py::module_::import("torch.nn.utils").attr("get_total_norm")(gradients, clipping.norm_type);
  return py::tuple(args);
}

}  // namespace

void forget_clipping() noexcept {
  wanted = false;
  clippings().clear();
}

void begin_again() {
  Live& l = live();
  SetAside& aside = set_aside();
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
  buffer_snapshot().restore();
}

void end_again() {
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
  for (std::size_t i = 0; i < aside.entries.size(); ++i) *l.optimizers[i] = std::move(aside.entries[i]);
  aside.entries.clear();
  aside.losses.clear();
  restore_rng(aside.rng);
  aside.buffers.restore();
}

bool gradients_present() {
  bool found = false;
  for (const auto& entry : live().optimizers) {
    if (PyWeakref_GetObject(entry->ref) != entry->self) continue;
    for_first_parameters(entry->self, OptimizerEntry::kProbes,
                         [&](std::uint32_t, PyObject* p) { found = found || gradient_of(p) != nullptr; });
  }
  return found;
}

void clip_again() {
  const std::vector<Clipping> list = clippings();
  for (const Clipping& c : list) {
    const py::object args = c.norm_type > 0 ? with_norm_of_now(c) : c.args;
    PyObject* result = PyObject_Call(c.original.ptr(), args.ptr(), c.kwargs.is_none() ? nullptr : c.kwargs.ptr());
    if (result == nullptr) throw py::error_already_set();
    Py_DECREF(result);
  }
}

void unit_ended() {
  clippings().clear();
  wanted = true;
}

void note_clipping(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, double norm_type) {
  if (!wanted || units_run_again()) return;
  py::tuple positional(nargs);
  for (Py_ssize_t i = 0; i < nargs; ++i) positional[i] = py::reinterpret_borrow<py::object>(args[i]);
  py::object named = py::none();
  if (kwnames != nullptr) {
    py::dict dict;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); ++i) {
      dict[py::handle(PyTuple_GET_ITEM(kwnames, i))] = py::reinterpret_borrow<py::object>(args[nargs + i]);
    }
    named = std::move(dict);
  }
  clippings().push_back(
      {py::reinterpret_borrow<py::object>(original), std::move(positional), std::move(named), norm_type});
}

}  // namespace finitude::bindings
