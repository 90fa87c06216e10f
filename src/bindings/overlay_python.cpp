#include "bindings/overlay_python.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/overlay_posix.h"

namespace py = pybind11;

namespace finitude::bindings {

// Paths are bytes: a name that is not UTF-8 is one too.
void define_overlay(py::module_& m) {
  m.def("overlay_directories", [](const std::vector<std::tuple<py::bytes, py::bytes, py::bytes>>& overlays,
                                  const std::vector<py::bytes>& stay) {
    std::vector<base::Overlay> all;
    for (const auto& [directory, upper, work] : overlays) all.push_back({directory, upper, work});
    const base::Overlaid done = base::overlay_directories(all, {stay.begin(), stay.end()});
    return std::pair(std::vector<py::bytes>(done.directories.begin(), done.directories.end()), done.why);
  });
  m.def("birth_time", [](const py::bytes& path) { return base::birth_time(path); });
}

}  // namespace finitude::bindings
