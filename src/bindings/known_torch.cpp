#include "bindings/known_torch.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/values_python.h"
#include "observe/known_values_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/user_stack.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

constexpr std::size_t kMostLookedAt = 64u << 20;  // bytes of a tensor without a graph
constexpr std::size_t kMostCarried = 4u << 20;    // bytes of values that a bad step computed, held until the next one
constexpr std::size_t kMostParts = 64;            // of a tuple, list or dict

bool is_small_data(PyObject* object, const at::Tensor& tensor) {
  return Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(THPVariableClass) && !observe::has_graph(tensor) &&
         tensor.layout() == at::kStrided && tensor.nbytes() <= kMostLookedAt;
}

// The tensors that a name holds, by itself or in a tuple, list or dict: a hidden state has several parts.
template <typename Visit>
void for_each_tensor(const py::handle value, Visit visit) {
  const auto one = [&](const py::handle part) {
    if (is_tensor_object(part.ptr())) visit(part.ptr(), at::Tensor(THPVariable_Unpack(part.ptr())));
  };
  py::list parts;
  if (PyDict_CheckExact(value.ptr()))
    parts = py::reinterpret_steal<py::list>(PyDict_Values(value.ptr()));
  else if (PyTuple_CheckExact(value.ptr()) || PyList_CheckExact(value.ptr()))
    parts = py::list(py::reinterpret_borrow<py::object>(value));
  else
    return one(value);
  for (std::size_t i = 0; i < std::min(parts.size(), kMostParts); ++i) one(parts[i]);
}

// A copy of a frame's names. Those of a function are not asked for by f_locals: before 3.13 that fills the dict that
// locals() gave the program, and all in it would live as long as the frame.
py::dict names_of(PyFrameObject* frame) {
  const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  PyObject* const object = reinterpret_cast<PyObject*>(frame);
  PyObject* names = nullptr;
  if ((reinterpret_cast<PyCodeObject*>(code.ptr())->co_flags & CO_OPTIMIZED) != 0) {
    names = function_names(object);
  } else {
    const py::object locals = py::handle(object).attr("f_locals");
    if (!PyDict_Check(locals.ptr())) return py::dict(locals);  // what exec was given, or a metaclass has prepared
    names = PyDict_Copy(locals.ptr());
  }
  if (names == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::dict>(names);
}

class Known {
 public:
  void note(const py::iterable& tensors) {
    for (const py::handle tensor : tensors) kept_.note(tensor.cast<at::Tensor>());
  }

  // Values with a graph in the frames that lead here, such as the loss that was given to backward.
  void note_frames() {
    carried = py::list();
    held_.forget();
    std::size_t size = 0;
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      for (const auto item : names_of(raw)) {
        for_each_tensor(item.second, [&](PyObject* object, const at::Tensor& tensor) {
          const bool in_graph = observe::has_graph(tensor);
          if ((!in_graph && !is_small_data(object, tensor)) || is_finite(tensor)) return;
          if (!in_graph) return held_.note(tensor);
          kept_.note(tensor);
          size += tensor.layout() == at::kStrided ? tensor.storage().nbytes() : kMostCarried;
          if (size <= kMostCarried) carried.append(py::make_tuple(item.first, tensor.detach()));
        });
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
    }
  }

  // What a bad step leaves in places that each step re-binds, for the next to read.
  void carry(const py::iterable& left) {
    for (const py::handle one : left) {
      for (const py::handle tensor : one.attr("tensors")) carried.append(py::make_tuple(one.attr("name"), tensor));
    }
  }

  // Of what was bad in names then, without a graph: what nobody has written since.
  std::vector<at::Tensor> still_held() const { return held_.unwritten(); }

  bool contains(const at::Tensor& tensor) const { return kept_.contains(tensor); }

  void leave(py::object ordinal, std::uint64_t step, py::list left) {
    left_at_ = py::make_tuple(std::move(ordinal), step);
    left_ = std::move(left);
  }
  // What that step has left so: the next begins with it.
  py::list left_by(const py::object& ordinal, std::int64_t step) const {
    return left_at_.equal(py::make_tuple(ordinal, step)) ? left_ : py::list();
  }

  py::list carried;  // (name, tensor) of what a bad step computed, for the next to read

 private:
  observe::KnownValues kept_;
  observe::KnownValues held_;  // what was bad and has no graph, such as a batch
  py::object left_at_ = py::none();
  py::list left_;
};

}  // namespace

void define_known(py::module_& m) {
  m.def("has_graph", &observe::has_graph);
  py::class_<Known>(m, "Known")
      .def(py::init())
      .def("note", &Known::note, py::arg("tensors"))
      .def("note_frames", &Known::note_frames)
      .def("carry", &Known::carry, py::arg("left"))
      .def("still_held", &Known::still_held)
      .def("__contains__", &Known::contains, py::arg("tensor"))
      .def("leave", &Known::leave, py::arg("ordinal"), py::arg("step"), py::arg("left"))
      .def("left_by", &Known::left_by, py::arg("ordinal"), py::arg("step"))
      .def_readonly("carried", &Known::carried);
}

}  // namespace finitude::bindings
