// Post-hooks are put into optimizer._optimizer_step_post_hooks directly. register_step_post_hook would make a handle
// with an id of its own, and the key here has to be known later. The dict owns the hook; an optimizer whose dict is
// not there is left without one.
#include "gate/post_hook_torch.h"

namespace finitude::bindings {
namespace {

// An absent key is no error: the program may have cleared its hooks.
void remove_post_hook(PyObject* optimizer, const char* key) {
  const Object hooks = Object::take(PyObject_GetAttrString(optimizer, "_optimizer_step_post_hooks"));
  const Object name = Object::take(PyUnicode_FromString(key));
  if (hooks && name && PyObject_DelItem(hooks.get(), name.get()) != 0) PyErr_Clear();
  PyErr_Clear();
}

}  // namespace

// False, with no error set: the hook is not in place, as where there is no such dict.
bool add_post_hook(PyObject* optimizer, const char* key, PyMethodDef* def) {
  const Object hooks = Object::take(PyObject_GetAttrString(optimizer, "_optimizer_step_post_hooks"));
  const Object hook = Object::take(def != nullptr ? PyCFunction_New(def, nullptr)
                                                  : PyObject_GetAttrString(live().cold.get(), "after_step"));
  const Object name = Object::take(PyUnicode_FromString(key));
  const bool ok = hooks && hook && name && PyObject_SetItem(hooks.get(), name.get(), hook.get()) == 0;
  if (!ok) PyErr_Clear();
  return ok;
}

// Only for steps whose result is read: a healthy step of torch.optim has none.
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
