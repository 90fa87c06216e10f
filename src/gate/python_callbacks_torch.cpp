// Calls into finitude.session.native_callbacks, on rare events.
#include "gate/state_torch.h"
#include "pyhost/object_python.h"
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {
namespace {

// A step compiled by torch.compile calls the gate from compiled code. Dynamo's frame evaluation is switched off during
// the callback: otherwise it would try to compile our Python code. If
// Dynamo was never imported there is nothing to switch off, and it is not imported for this.
class NotCompiled {
 public:
  NotCompiled() {
    const Object name = Object::take(PyUnicode_FromString("torch._C._dynamo.eval_frame"));
    const Object module = name ? Object::take(PyImport_GetModule(name.get())) : Object();
    if (module) set_ = Object::take(PyObject_GetAttrString(module.get(), "set_eval_frame"));
    if (set_) before_ = Object::take(PyObject_CallOneArg(set_.get(), Py_None));
    PyErr_Clear();
  }
  ~NotCompiled() {
    const SavedError saved;  // the callback may have raised
    if (before_) Object::take(PyObject_CallOneArg(set_.get(), before_.get()));
  }
  NotCompiled(const NotCompiled&) = delete;
  NotCompiled& operator=(const NotCompiled&) = delete;

 private:
  Object set_, before_;
};

}  // namespace

// Arguments are borrowed; the argument tuple holds them during the call. Counted, since the promise is that a healthy
// step makes no such call.
Object call_cold(const char* name, PyObject* a, PyObject* b, PyObject* c) {
  ++live().counters.python_calls;
  const NotCompiled not_compiled;
  const char* const form = c != nullptr ? "(OOO)" : b != nullptr ? "(OO)" : "(O)";
  return Object::take(PyObject_CallMethod(live().cold.get(), name, form, a, b, c));
}

}  // namespace finitude::bindings
