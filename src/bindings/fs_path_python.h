// Words and paths as the system has them: bytes, which are not UTF-8 in each name and locale.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// What os.fsencode makes of a str.
struct FsPath {
  std::string bytes;
};

// Text that may quote such bytes.
inline pybind11::str lenient_text(const std::string& text) {
  return pybind11::reinterpret_steal<pybind11::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

}  // namespace finitude::bindings

template <>
struct pybind11::detail::type_caster<finitude::bindings::FsPath> {
  PYBIND11_TYPE_CASTER(finitude::bindings::FsPath, const_name("str"));
  bool load(handle source, bool) {
    if (!PyUnicode_Check(source.ptr()) && !PyBytes_Check(source.ptr())) return false;
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(source.ptr(), &encoded) == 0) {
      PyErr_Clear();
      return false;
    }
    const auto owned = finitude::bindings::Object::take(encoded);
    value.bytes = std::string(PyBytes_AS_STRING(encoded), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded)));
    return true;
  }
};
