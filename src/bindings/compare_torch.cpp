#include <pybind11/stl.h>

#include <nlohmann/json.hpp>

#include "bindings/compare_python.h"
#include "bindings/fs_path_python.h"
#include "compare/capsules.h"
#include "show/compared_files.h"
#include "show/comparison.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;
using nlohmann::json;

// (exit code, what is wrong, the document as JSON)
py::tuple compared(const FsPath& path_a, const FsPath& path_b, const std::vector<std::string>& namespaces, int threads,
                   std::uint64_t max_bytes) {
  const compare::PlayedOptions options{namespaces, threads, max_bytes};
  const show::Players players{
      [&](const capture::Tape& tape, compare::Run* run) { return compare::play_one(tape, options, run); },
      [&](const capture::Tape& a, const capture::Tape& b, compare::Compared* both) {
        return compare::play_both(a, b, options, both);
      }};
  show::ComparedFiles found;
  std::string text;
  {
    const py::gil_scoped_release release;
    found = show::compare_files(path_a.bytes, path_b.bytes, &players);
    if (found.why.empty()) text = found.document.dump(-1, ' ', true, json::error_handler_t::replace);
  }
  return py::make_tuple(found.code, lenient_text(found.why), lenient_text(text));
}

}  // namespace

void define_compare(py::module_& m) {
  m.def("compare", &compared);
  m.def("render_comparison", [](const std::string& document, bool colour, int width, bool unicode) {
    return show::comparison(json::parse(document), {colour, width, unicode});
  });
}

}  // namespace finitude::bindings
