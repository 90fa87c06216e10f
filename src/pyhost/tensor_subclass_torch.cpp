#include "pyhost/tensor_subclass_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <unordered_map>
#include <utility>

#include "base/immortal.h"
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {
namespace {

constexpr int kMaxDepth = 4;
constexpr std::size_t kMaxClasses = 64;

// Of one class.
struct Form {
  PyObject* type = nullptr;  // kept, so that no other class gets its address
  PyObject* name = nullptr;  // of the attribute with the values; null: not one that we can read
  bool comes_late = false;   // an exchange between ranks that may still be under way
};

base::Immortal<std::unordered_map<PyTypeObject*, Form>> forms;
base::Immortal<std::string> the_unread;  // class of the first tensor that could not be read

bool holds_values(PyObject* object) {
  return object != nullptr && THPVariable_Check(object) && THPVariable_Unpack(object).defined() &&
         (at::isFloatingType(THPVariable_Unpack(object).scalar_type()) ||
          at::isComplexType(THPVariable_Unpack(object).scalar_type()));
}

// The one attribute of floating point among those that __tensor_flatten__ names. New reference, or null. Two such
// attributes (values and scales of a quantised tensor) are refused: neither alone is the value of the wrapper.
PyObject* name_in(PyObject* object) {
  PyObject* reported = PyObject_CallMethod(object, "__tensor_flatten__", nullptr);
  PyObject* names = reported != nullptr && PyTuple_Check(reported) && PyTuple_GET_SIZE(reported) == 2
                        ? PyTuple_GET_ITEM(reported, 0)
                        : nullptr;
  PyObject* list = names != nullptr ? PySequence_List(names) : nullptr;
  PyObject* found = nullptr;
  int count = 0;
  for (Py_ssize_t i = 0; list != nullptr && i < PyList_GET_SIZE(list); ++i) {
    PyObject* name = PyList_GET_ITEM(list, i);
    PyObject* value = PyUnicode_Check(name) ? PyObject_GetAttr(object, name) : nullptr;
    if (holds_values(value)) {
      ++count;
      Py_XDECREF(std::exchange(found, Py_NewRef(name)));
    }
    Py_XDECREF(value);
  }
  if (count != 1) Py_CLEAR(found);
  if (found != nullptr) PyUnicode_InternInPlace(&found);
  Py_XDECREF(list);
  Py_XDECREF(reported);
  PyErr_Clear();
  return found;
}

// Asked of the first tensor of each class, as the question calls Python code. All tensors of a class are taken to have
// the form of the first. The map is node-based, so the pointer stays valid when other classes are added.
const Form* form_of(PyObject* object) {
  auto& all = *forms;
  PyTypeObject* type = Py_TYPE(object);
  if (const auto known = all.find(type); known != all.end()) return &known->second;
  if (all.size() >= kMaxClasses) return nullptr;
  auto* type_object = reinterpret_cast<PyObject*>(type);
  Form form{Py_NewRef(type_object),
            PyObject_HasAttrString(type_object, "__tensor_flatten__") ? name_in(object) : nullptr,
            PyObject_HasAttrString(type_object, "trigger_wait") != 0};
  PyErr_Clear();
  return &all.emplace(type, form).first->second;
}

// What `tensor` is wrapped around; null: it is no wrapper that can be looked into.
const at::Tensor* inner_of(const at::Tensor& tensor) {
  PyObject* object = THPVariable_Wrap(tensor);  // it has one: its class is a Python class
  const Form* form = object != nullptr ? form_of(object) : nullptr;
  const at::Tensor* found = nullptr;
  if (form != nullptr && form->name != nullptr) {
    if (form->comes_late) Py_XDECREF(PyObject_CallMethod(object, "trigger_wait", nullptr));
    PyObject* inner = PyErr_Occurred() == nullptr ? PyObject_GetAttr(object, form->name) : nullptr;
    // The caller gets a plain reference to the tensor inside. The wrapper keeps that alive, unless the attribute is a
    // property that makes a new tensor each time: ours is then the only reference, and it is dropped here.
    if (holds_values(inner) && Py_REFCNT(inner) > 1) found = &THPVariable_Unpack(inner);
    Py_XDECREF(inner);
  }
  PyErr_Clear();
  Py_XDECREF(object);
  return found;
}

}  // namespace

const at::Tensor& detail::inside_of(const at::Tensor& tensor) noexcept {
  // Called from hooks in which an exception of the program may be set; the calls into Python below would replace it.
  const ErrorAside aside;
  const at::Tensor* at = &tensor;
  try {
    for (int depth = 0; depth < kMaxDepth && at->unsafeGetTensorImpl()->is_python_dispatch(); ++depth) {
      const at::Tensor* inner = inner_of(*at);
      if (inner == nullptr) return tensor;
      at = inner;
    }
  } catch (...) {  // noexcept: an exception here would end the program
    return tensor;
  }
  return *at;
}

bool note_unread(const at::Tensor& tensor) noexcept {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->is_python_dispatch()) return false;
  std::string& first = *the_unread;
  if (!first.empty()) return true;
  const ErrorAside aside;
  try {
    PyObject* object = THPVariable_Wrap(tensor);
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    PyObject* module = PyObject_GetAttrString(type, "__module__");
    const char* of = module != nullptr ? PyUnicode_AsUTF8(module) : nullptr;
    PyObject* name = PyObject_GetAttrString(type, "__qualname__");
    const char* own = name != nullptr ? PyUnicode_AsUTF8(name) : nullptr;
    first = std::string(of != nullptr ? of : "") + "." + (own != nullptr ? own : "");
    Py_XDECREF(module);
    Py_XDECREF(name);
    Py_XDECREF(object);
    PyErr_Clear();
  } catch (...) {
  }
  return true;
}

const std::string& unread_class() noexcept { return *the_unread; }

}  // namespace finitude::bindings
