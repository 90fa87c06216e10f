#include "bindings/plain_python.h"

#include <cmath>

namespace finitude::bindings {
namespace {

namespace py = pybind11;

py::object recoded(const py::handle text, const char* to_bytes, const char* to_text) {
  const auto bytes = py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", to_bytes));
  if (!bytes) return {};
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes.ptr()), PyBytes_GET_SIZE(bytes.ptr()), to_text));
}

// The same text, or one that shows the bytes that are no UTF-8 as \x.., as a shell reads them in $'...'.
py::object plain_text(const py::handle text) {
  if (PyUnicode_AsUTF8AndSize(text.ptr(), nullptr) != nullptr) return py::reinterpret_borrow<py::object>(text);
  PyErr_Clear();
  py::object plain = recoded(text, "surrogateescape", "backslashreplace");
  if (!plain) {  // surrogates that represent no byte
    PyErr_Clear();
    plain = recoded(text, "backslashreplace", "strict");
  }
  if (!plain) throw py::error_already_set();
  return plain;
}

class Recursion {
 public:
  Recursion() {
    if (Py_EnterRecursiveCall(" in a report") != 0) throw py::error_already_set();
  }
  ~Recursion() { Py_LeaveRecursiveCall(); }
  Recursion(const Recursion&) = delete;
  Recursion& operator=(const Recursion&) = delete;
};

class Plain {
 public:
  explicit Plain(py::object shown) : shown_(std::move(shown)) {}

  py::object of(const py::handle value) const {
    if (PyUnicode_Check(value.ptr())) return plain_text(value);
    if (PyFloat_Check(value.ptr())) return number(value);
    const Recursion deeper;
    if (PyDict_Check(value.ptr())) return dict(value);
    if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) return list(value);
    return py::reinterpret_borrow<py::object>(value);
  }

 private:
  static py::object number(const py::handle value) {
    const double number = PyFloat_AS_DOUBLE(value.ptr());
    if (std::isfinite(number)) return py::reinterpret_borrow<py::object>(value);
    return py::str(std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity");
  }

  // Of copies: what is called meanwhile may change the value.
  py::object dict(const py::handle value) const {
    py::dict plain;
    const auto items = py::reinterpret_steal<py::list>(PyDict_Items(value.ptr()));
    if (!items) throw py::error_already_set();
    for (const py::handle item : items) {
      const py::handle key = PyTuple_GET_ITEM(item.ptr(), 0), inner = PyTuple_GET_ITEM(item.ptr(), 1);
      const py::object name =
          plain_text(PyUnicode_Check(key.ptr()) ? py::reinterpret_borrow<py::object>(key) : py::object(py::str(key)));
      plain[name] = is_source(name) && PyUnicode_Check(inner.ptr()) ? of(shown_(inner)) : of(inner);
    }
    return plain;
  }

  py::object list(const py::handle value) const {
    py::list plain;
    for (const py::handle one : py::reinterpret_steal<py::tuple>(PySequence_Tuple(value.ptr()))) plain.append(of(one));
    return plain;
  }

  bool is_source(const py::object& key) const {
    return !shown_.is_none() && (PyUnicode_CompareWithASCIIString(key.ptr(), "source") == 0 ||
                                 PyUnicode_CompareWithASCIIString(key.ptr(), "diff") == 0);
  }

  py::object shown_;
};

}  // namespace

void define_plain(py::module_& m) {
  m.def(
      "plain", [](const py::object& value, const py::object& shown) { return Plain(shown).of(value); },
      py::arg("value"), py::arg("shown") = py::none(),
      "A copy without NaN and Inf, which travel as texts, and without half a character; lines of a program "
      "(\"source\", "
      "\"diff\") as shown(lines).");
}

}  // namespace finitude::bindings
