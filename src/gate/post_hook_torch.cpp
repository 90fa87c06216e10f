#include "gate/post_hook_torch.h"

namespace finitude::bindings {
namespace {

void remove_post_hook(PyObject* optimizer, const char* key) {
  PyObject* hooks = PyObject_GetAttrString(optimizer, "_optimizer_step_post_hooks");
  PyObject* name = PyUnicode_FromString(key);
  if (hooks != nullptr && name != nullptr && PyObject_DelItem(hooks, name) != 0) PyErr_Clear();
  PyErr_Clear();
  Py_XDECREF(hooks);
  Py_XDECREF(name);
}

}  // namespace

bool add_post_hook(PyObject* optimizer, const char* key, PyMethodDef* def) {
  PyObject* hooks = PyObject_GetAttrString(optimizer, "_optimizer_step_post_hooks");
  PyObject* hook = def != nullptr ? PyCFunction_New(def, nullptr) : PyObject_GetAttrString(live().cold, "after_step");
  PyObject* name = PyUnicode_FromString(key);
  const bool ok = hooks != nullptr && hook != nullptr && name != nullptr && PyObject_SetItem(hooks, name, hook) == 0;
  if (!ok) PyErr_Clear();
  Py_XDECREF(hooks);
  Py_XDECREF(hook);
  Py_XDECREF(name);
  return ok;
}

void arm_post_hook(OptimizerEntry& entry) {
  if (entry.armed_post) return;
  ++live().counters.post_hooks;
  entry.armed_post = add_post_hook(entry.self, "finitude_check", nullptr);
}

void remove_stale_hooks(OptimizerEntry& entry) {
  if (entry.armed_post) remove_post_hook(entry.self, "finitude_check");
  if (entry.armed_restore) remove_post_hook(entry.self, "finitude_restore");
  entry.armed_post = entry.armed_restore = false;
}

}  // namespace finitude::bindings
