#include "bindings/step_calls_python.h"

#include <memory>

#include "gate/state_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/snapshot_torch.h"
#include "rewind/step_calls_torch.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;

}  // namespace

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
      list.append(py::make_tuple(reinterpret_cast<std::uintptr_t>(made ? e.result.get() : e.owner.get()),
                                 object(made ? nullptr : e.result.get()), object(e.indices.get()), e.grad_mode,
                                 std::make_unique<RngState>(*e.after),
                                 made                           ? "iter"
                                 : e.kind == LoaderEvent::kNext ? "next"
                                                                : "stop",
                                 object(made ? e.result.get() : e.owner.get())));
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
  m.def("unit_ended", &unit_ended);
  m.def("clip_again", [] {
    if (!clip_again()) throw py::error_already_set();
  });
  m.def("begin_again", &begin_again);
  m.def("end_again", &end_again);
}

}  // namespace finitude::bindings
