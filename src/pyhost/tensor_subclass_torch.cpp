#include "pyhost/tensor_subclass_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <unordered_map>
#include <utility>

#include "base/immortal.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/object_python.h"
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {
namespace {

constexpr int kMaxDepth = 4;
constexpr std::size_t kMaxClasses = 64;

// Of one class.
struct Form {
  Object type;              // kept, so that no other class gets its address
  Object name;              // of the attribute with the values; empty: not one that we can read
  bool comes_late = false;  // an exchange between ranks that may still be under way
};

base::Immortal<std::unordered_map<PyTypeObject*, Form>> forms;
base::Immortal<std::string> the_unread;  // class of the first tensor that could not be read

bool holds_values(PyObject* object) {
  return object != nullptr && is_tensor_object(object) && THPVariable_Unpack(object).defined() &&
         (at::isFloatingType(THPVariable_Unpack(object).scalar_type()) ||
          at::isComplexType(THPVariable_Unpack(object).scalar_type()));
}

// The one attribute of floating point among those that __tensor_flatten__ names; empty if there is none. Two such
// attributes (values and scales of a quantised tensor) are refused: neither alone is the value of the wrapper.
Object name_in(PyObject* object) {
  const Object reported = Object::take(PyObject_CallMethod(object, "__tensor_flatten__", nullptr));
  PyObject* names = reported && PyTuple_Check(reported.get()) && PyTuple_GET_SIZE(reported.get()) == 2
                        ? PyTuple_GET_ITEM(reported.get(), 0)
                        : nullptr;
  const Object list = names != nullptr ? Object::take(PySequence_List(names)) : Object();
  Object found;
  int count = 0;
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i) {
    const Object name = Object::share(PyList_GET_ITEM(list.get(), i));
    if (!PyUnicode_Check(name.get())) continue;
    const Object value = Object::take(PyObject_GetAttr(object, name.get()));
    if (!holds_values(value.get())) continue;
    ++count;
    found = name;
  }
  PyErr_Clear();
  if (count != 1) return Object();
  PyObject* name = found.release();
  PyUnicode_InternInPlace(&name);
  return Object::take(name);
}

// Asked of the first tensor of each class, as the question calls Python code. All tensors of a class are taken to have
// the form of the first. The map is node-based, so the pointer stays valid when other classes are added.
const Form* form_of(PyObject* object) {
  auto& all = *forms;
  PyTypeObject* type = Py_TYPE(object);
  if (const auto known = all.find(type); known != all.end()) return &known->second;
  if (all.size() >= kMaxClasses) return nullptr;
  auto* type_object = reinterpret_cast<PyObject*>(type);
  Form form{Object::share(type_object),
            PyObject_HasAttrString(type_object, "__tensor_flatten__") ? name_in(object) : Object(),
            PyObject_HasAttrString(type_object, "trigger_wait") != 0};
  PyErr_Clear();
  return &all.emplace(type, std::move(form)).first->second;
}

// What `tensor` is wrapped around; null: it is no wrapper that can be looked into.
const at::Tensor* inner_of(const at::Tensor& tensor) {
  const Object object = Object::take(THPVariable_Wrap(tensor));  // it has one: its class is a Python class
  const Form* form = object ? form_of(object.get()) : nullptr;
  const at::Tensor* found = nullptr;
  if (form != nullptr && form->name) {
    if (form->comes_late) Object::take(PyObject_CallMethod(object.get(), "trigger_wait", nullptr));
    const Object inner =
        PyErr_Occurred() == nullptr ? Object::take(PyObject_GetAttr(object.get(), form->name.get())) : Object();
    // The caller gets a plain reference to the tensor inside. The wrapper keeps that alive, unless the attribute is a
    // property that makes a new tensor each time: ours is then the only reference, and it is dropped here.
    if (holds_values(inner.get()) && Py_REFCNT(inner.get()) > 1) found = &THPVariable_Unpack(inner.get());
  }
  PyErr_Clear();
  return found;
}

}  // namespace

const at::Tensor& detail::inside_of(const at::Tensor& tensor) noexcept {
  // Called from hooks in which an exception of the program may be set; the calls into Python below would replace it.
  const SavedError saved;
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
  const SavedError saved;
  try {
    const Object object = Object::take(THPVariable_Wrap(tensor));
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object.get()));
    const Object module = Object::take(PyObject_GetAttrString(type, "__module__"));
    const char* of = module ? PyUnicode_AsUTF8(module.get()) : nullptr;
    const Object name = Object::take(PyObject_GetAttrString(type, "__qualname__"));
    const char* own = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
    first = std::string(of != nullptr ? of : "") + "." + (own != nullptr ? own : "");
    PyErr_Clear();
  } catch (...) {
  }
  return true;
}

const std::string& unread_class() noexcept { return *the_unread; }

}  // namespace finitude::bindings
