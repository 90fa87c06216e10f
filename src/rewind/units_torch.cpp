#include "rewind/units_torch.h"

#include <algorithm>
#include <memory>

#include "base/immortal.h"
#include "bindings/units_python.h"
#include "gate/window_torch.h"
#include "rewind/loader_torch.h"
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

bool again = false;
bool wanted = false;  // a unit has ended in this window

SetAside& set_aside() {
  static auto* aside = new SetAside();
  return *aside;
}

base::Immortal<std::vector<Clipping>> the_clippings;
std::vector<Clipping>& clippings() { return *the_clippings; }

// Everything is as at the start of the window, but for gradients and generators: those are the caller's to
// set.
void begin_again() {
  Live& l = live();
  SetAside& aside = set_aside();
  again = true;
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
  if (!again) return;
  again = false;
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

// Does one of the first parameters of any optimizer have a gradient?
bool gradients_present() {
  bool found = false;
  for (const auto& entry : live().optimizers) {
    if (PyWeakref_GetObject(entry->ref) != entry->self) continue;
    for_first_parameters(entry->self, OptimizerEntry::kProbes,
                         [&](std::uint32_t, PyObject* p) { found = found || gradient_of(p) != nullptr; });
  }
  return found;
}

// The arguments (parameters, largest norm, norm) with the norm of the gradients that are there now.
py::object with_norm_of_now(const Clipping& clipping) {
  py::list args(clipping.args), gradients;
  for (const py::handle p : args[0]) {
    if (py::object gradient = p.attr("grad"); !gradient.is_none()) gradients.append(std::move(gradient));
  }
  args[2] = py::module_::import("torch.nn.utils").attr("get_total_norm")(gradients, clipping.norm_type);
  return py::tuple(args);
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

bool same(const TorchRng& a, const TorchRng& b) {
  return a.taken == b.taken && (!a.taken || (a.engine.left_ == b.engine.left_ && a.engine.next_ == b.engine.next_ &&
                                             a.engine.state_ == b.engine.state_ && a.next_float == b.next_float &&
                                             a.next_double == b.next_double));
}

bool same(const TwisterRng& a, const TwisterRng& b) { return a.taken == b.taken && (!a.taken || a.bytes == b.bytes); }

bool same(const RngState& a, const RngState& b) {
  return same(a.torch_cpu, b.torch_cpu) && same(a.python, b.python) && same(a.numpy, b.numpy) &&
         std::ranges::equal(a.own, b.own, [](const TorchRng& x, const TorchRng& y) { return same(x, y); }) &&
         std::ranges::equal(a.devices, b.devices, [](const DeviceRng& x, const DeviceRng& y) {
           return x.taken == y.taken && (!x.taken || (x.seed == y.seed && x.offset == y.offset));
         });
}

}  // namespace

bool units_run_again() noexcept { return again; }

void forget_clipping() noexcept {
  wanted = false;
  clippings().clear();
}

void note_clipping(PyObject* original, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, double norm_type) {
  if (!wanted || again) return;
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

void define_units(py::module_& m) {
  py::class_<RngState>(m, "Generators")
      .def("restore", [](const RngState& state) { restore_rng(state); })
      .def("bytes", [](const RngState& state) { return py::bytes(rng_bytes(state)); })
      .def_static("from_bytes",
                  [](const py::bytes& bytes) {
                    auto state = std::make_unique<RngState>();
                    if (!rng_from_bytes(std::string_view(bytes), state.get()))
                      throw py::value_error("these are no states of generators");
                    return state;
                  })
      .def("__eq__", [](const RngState& a, const RngState& b) { return same(a, b); });
  m.def("take_generators", [] {
    auto state = std::make_unique<RngState>();
    take_rng(state.get());
    return state;
  });
  m.def("windows_closed", [] { return live().windows_closed; });
  m.def("loss_serial", [] { return live().next_serial; });
  m.def("batches_fetched", [] { return loader_log().size(); });
  // What loaders gave since the window began: [(id of the iterator, batch, indices of its samples or None, grad mode,
  // Generators right after, "iter" | "next" | "stop", the iterator)]. The batch is None where the iterator was made or
  // came to its end.
  m.def("window_batches", [] {
    py::list list;
    for (const LoaderEvent& e : loader_log().events()) {
      const bool made = e.kind == LoaderEvent::kIter;
      const auto object = [](PyObject* o) {
        return o == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(o);
      };
      list.append(py::make_tuple(reinterpret_cast<std::uintptr_t>(made ? e.result : e.owner),
                                 object(made ? nullptr : e.result), object(e.indices), e.grad_mode,
                                 std::make_unique<RngState>(*e.after),
                                 made                           ? "iter"
                                 : e.kind == LoaderEvent::kNext ? "next"
                                                                : "stop",
                                 object(made ? e.result : e.owner)));
    }
    return list;
  });
  // batch_origin(batch) -> (iterator of its loader, indices of its samples or None, Generators before it was fetched or
  // None, after it), or None: what the window's steps were given, known by its values, where the loader is asked ahead
  // too.
  m.def("batch_origin", [](py::handle batch) -> py::object {
    BatchOrigin origin;
    if (!loader_log().origin_of(batch.ptr(), &origin)) return py::none();
    const auto object = [](PyObject* o) {
      return o == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(o);
    };
    const auto state = [](const RngState* s) {
      return s == nullptr ? py::object(py::none()) : py::cast(std::make_unique<RngState>(*s));
    };
    return py::make_tuple(object(origin.iterator), object(origin.indices), state(origin.before), state(origin.after));
  });
  m.def("gradients_present", &gradients_present);
  m.def("unit_ended", [] {
    clippings().clear();
    wanted = true;
  });
  m.def("clip_again", &clip_again);
  m.def("begin_again", &begin_again);
  m.def("end_again", &end_again);
}

}  // namespace finitude::bindings
