// Calls into finitude.session.native_callbacks, on rare events.
#include "gate/state_torch.h"

namespace finitude::bindings {
namespace {

// A step compiled by torch.compile calls the gate from compiled code. Dynamo's frame evaluation is switched off during
// the callback: otherwise it would try to compile our Python code. If
// Dynamo was never imported there is nothing to switch off, and it is not imported for this.
class NotCompiled {
 public:
  NotCompiled() {
    PyObject* name = PyUnicode_FromString("torch._C._dynamo.eval_frame");
    PyObject* module = name != nullptr ? PyImport_GetModule(name) : nullptr;
    set_ = module != nullptr ? PyObject_GetAttrString(module, "set_eval_frame") : nullptr;
    before_ = set_ != nullptr ? PyObject_CallOneArg(set_, Py_None) : nullptr;
    PyErr_Clear();
    Py_XDECREF(module);
    Py_XDECREF(name);
  }
  ~NotCompiled() {
    // The callback may have raised: its error is kept over the call.
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (before_ != nullptr) Py_XDECREF(PyObject_CallOneArg(set_, before_));
    PyErr_Restore(type, value, traceback);
    Py_XDECREF(before_);
    Py_XDECREF(set_);
  }
  NotCompiled(const NotCompiled&) = delete;
  NotCompiled& operator=(const NotCompiled&) = delete;

 private:
  PyObject* set_;
  PyObject* before_;
};

}  // namespace

// `live().cold` is owned for the life of the process. Arguments are borrowed; the argument tuple holds them during the
// call. Counted, since the promise is that a healthy step makes no such call.
PyObject* call_cold(const char* name, PyObject* a, PyObject* b, PyObject* c) {
  ++live().counters.python_calls;
  const NotCompiled not_compiled;
  return PyObject_CallMethod(live().cold, name, c != nullptr ? "(OOO)" : b != nullptr ? "(OO)" : "(O)", a, b, c);
}

}  // namespace finitude::bindings
