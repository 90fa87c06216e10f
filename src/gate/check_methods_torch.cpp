// The entries of torch's PyMethodDef tables are changed in place, under the GIL. A method descriptor reads its table
// on each call, so the objects that Python sees stay the same: identity, names and signatures do not change, and
// neither do guards of torch.compile. A replacement first looks at the tensor and then calls torch's function with the
// same arguments, in any case.
#include "gate/check_methods_torch.h"

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "gate/checked_row_torch.h"
#include "gate/marks_torch.h"
#include "gate/script_nan_checks_torch.h"
#include "observe/concrete_torch.h"
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {
namespace {

enum class Looks { kAtValue, kAtItself, kToCopy };  // kAtItself: where the value is compared with itself

// One method or function, by name, and what looking through it means.
struct Way {
  const char* name;
  bool is_function = false;  // of torch; else a method of Tensor
  Looks looks = Looks::kAtValue;
};

constexpr std::array kWays{
    Way{"isnan"},
    Way{"isinf"},
    Way{"isposinf"},
    Way{"isneginf"},
    Way{"isfinite"},
    Way{"isnan", true},
    Way{"isinf", true},
    Way{"isposinf", true},
    Way{"isneginf", true},
    Way{"isfinite", true},
    Way{"item"},
    Way{"tolist"},
    Way{"numpy"},
    Way{"__float__"},
    Way{"__int__"},
    Way{"__lt__"},
    Way{"__le__"},
    Way{"__gt__"},
    Way{"__ge__"},
    Way{"__eq__", false, Looks::kAtItself},
    Way{"__ne__", false, Looks::kAtItself},
    Way{"eq", false, Looks::kAtItself},
    Way{"ne", false, Looks::kAtItself},
    Way{"eq", true, Looks::kAtItself},
    Way{"ne", true, Looks::kAtItself},
    Way{"detach", false, Looks::kToCopy},
    Way{"detach", true, Looks::kToCopy},
};

// Where a replacement was put. of_torch outlives the watch: a call that entered the replacement before it was taken out
// still has to reach torch.
struct Place {
  PyMethodDef* table = nullptr;                    // torch's, where it leads to us
  PyCFunction of_torch = nullptr, ours = nullptr;  // kept: a call may be under way while torch's is put back
};

constinit std::array<Place, kWays.size()> places;

// Borrowed, or null. `args` is a tuple or null.
PyObject* argument(PyObject* args, Py_ssize_t index) {
  return args != nullptr && index < PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, index) : nullptr;
}

// `loss.data` makes a copy without a graph too.
struct {
  PyGetSetDef* table = nullptr;
  getter of_torch = nullptr;
} data_place;

// The plain tensor that it is; else null: a subclass answers for itself.
const at::Tensor* plain_tensor(PyObject* value) noexcept {
  if (value == nullptr || !THPVariable_CheckExact(value)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return tensor.defined() && observe::is_ordinary(*tensor.unsafeGetTensorImpl()) ? &tensor : nullptr;
}

// Runs on each call of a watched method. For a finite value: a type test and a scan of one element or a few; no
// allocation, no Python. noexcept: the call is the program's.
template <std::size_t i>
void look(PyObject* self, PyObject* args) noexcept {
  constexpr Way way = kWays[i];
  PyObject* value = way.is_function ? argument(args, 0) : self;
  if (way.looks == Looks::kAtItself && argument(args, way.is_function ? 1 : 0) != value) return;
  const at::Tensor* tensor = plain_tensor(value);
  if (tensor == nullptr) return;
  if (std::string_view(way.name) == "numpy") gradient_escapes(*tensor);
  if (way.looks == Looks::kToCopy)
    value_copied(*tensor);
  else
    value_checked(*tensor);
}

// What torch's call has returned, or null with an error set where the script is stopped at this look.
PyObject* after_look(PyObject* result) noexcept {
  if (result == nullptr || !is_checked_row_long()) [[likely]]
    return result;
  Object returned = Object::take(result);
  return report_checked_row() ? returned.release() : nullptr;
}

// A PyCFunction does not receive the table entry that it was called through, so each entry of kWays has a function.
template <std::size_t i>
PyObject* without_arguments(PyObject* self, PyObject* nothing) {
  look<i>(self, nullptr);
  return after_look(places[i].of_torch(self, nothing));
}

// The cast goes through void (*)(), which compilers accept for a METH_KEYWORDS function without a warning.
template <std::size_t i>
PyObject* with_arguments(PyObject* self, PyObject* args, PyObject* kwargs) {
  look<i>(self, args);
  const auto of_torch = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(places[i].of_torch));
  return after_look(of_torch(self, args, kwargs));
}

// A write through .data does not raise the version, so a gradient is read again after it.
PyObject* data_of(PyObject* self, void* closure) {
  if (const at::Tensor* tensor = plain_tensor(self)) {
    gradient_escapes(*tensor);
    value_copied(*tensor);
  }
  return data_place.of_torch(self, closure);
}

// The entry of torch's table, not owned; null if the attribute is not a plain C method or function (a program has
// replaced it) or has another name there. The object is released at once: torch's static table outlives it.
PyMethodDef* table_of(const Way& way, PyObject* methods, PyObject* functions) {
  const Object found = Object::take(PyObject_GetAttrString(way.is_function ? functions : methods, way.name));
  PyMethodDef* table = nullptr;
  if (found && way.is_function && PyCFunction_CheckExact(found.get())) {
    table = reinterpret_cast<PyCFunctionObject*>(found.get())->m_ml;
  } else if (found && !way.is_function && Py_IS_TYPE(found.get(), &PyMethodDescr_Type)) {
    table = reinterpret_cast<PyMethodDescrObject*>(found.get())->d_method;
  }
  PyErr_Clear();
  return table != nullptr && std::strcmp(table->ml_name, way.name) == 0 ? table : nullptr;
}

// Only for calling conventions that a replacement has. A second call changes nothing: `ours` must never be kept as
// of_torch, which would call itself.
template <std::size_t i>
void put(PyObject* methods, PyObject* functions) {
  Place& place = places[i];
  PyMethodDef* table = table_of(kWays[i], methods, functions);
  if (place.table != nullptr || table == nullptr) return;
  const int form = table->ml_flags & ~(METH_STATIC | METH_COEXIST);
  PyCFunction ours = nullptr;
  if (form == METH_NOARGS) ours = &without_arguments<i>;
  if (form == (METH_VARARGS | METH_KEYWORDS))
    ours = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&with_arguments<i>));
  if (ours == nullptr || table->ml_meth == ours) return;
  place = {table, table->ml_meth, ours};
  table->ml_meth = ours;
}

template <std::size_t... i>
void put_all(PyObject* methods, PyObject* functions, std::index_sequence<i...>) {
  (put<i>(methods, functions), ...);
}

void put_data(PyObject* methods) {
  const Object found = Object::take(PyObject_GetAttrString(methods, "data"));
  PyGetSetDef* table = nullptr;
  if (found && Py_IS_TYPE(found.get(), &PyGetSetDescr_Type))
    table = reinterpret_cast<PyGetSetDescrObject*>(found.get())->d_getset;
  PyErr_Clear();
  if (data_place.table != nullptr || table == nullptr || table->get == nullptr || table->get == &data_of) return;
  data_place = {table, table->get};
  table->get = &data_of;
}

}  // namespace

void watch_check_methods(bool on) {
  if (!on) {
    // Restored only where the entry still holds our function: another library may have put its own function over it.
    for (Place& place : places) {
      PyMethodDef* table = std::exchange(place.table, nullptr);
      if (table != nullptr && table->ml_meth == place.ours) table->ml_meth = place.of_torch;
    }
    PyGetSetDef* table = std::exchange(data_place.table, nullptr);
    if (table != nullptr && table->get == &data_of) table->get = data_place.of_torch;
    return;
  }
  const SavedError saved;
  const Object torch = Object::take(PyImport_ImportModule("torch._C"));
  const Object methods = torch ? Object::take(PyObject_GetAttrString(torch.get(), "TensorBase")) : Object();
  const Object functions = methods ? Object::take(PyObject_GetAttrString(torch.get(), "_VariableFunctions")) : Object();
  if (functions) put_all(methods.get(), functions.get(), std::make_index_sequence<kWays.size()>());
  if (methods) put_data(methods.get());
  PyErr_Clear();
}

}  // namespace finitude::bindings
