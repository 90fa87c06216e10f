#include "bindings/own_children_python.h"

#include <memory>

#include "base/own_children_posix.h"

namespace py = pybind11;

namespace finitude::bindings {

void define_own_children(py::module_& m) {
  base::keep_children_from(reinterpret_cast<const void*>(&PyOS_setsig));
  m.def("keep_children_again", &base::keep_children_again);
  struct Child {
    std::unique_ptr<base::OwnChild> own = std::make_unique<base::OwnChild>();
  };
  py::class_<Child>(m, "OwnChild")
      .def(py::init<>())
      .def("started", [](Child& child, int process) { child.own->started(process); })
      .def("ended", [](Child& child) { child.own.reset(); });
}

}  // namespace finitude::bindings
