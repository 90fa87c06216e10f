#include "gate/after_step_torch.h"

#include "gate/window_torch.h"
#include "gate/written_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/meter.h"
#include "standby/last_step_torch.h"

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

PyObject* check_after_step(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  const Metered hook(Piece::kHook);
  if (nargs < 1 || !live().on) Py_RETURN_NONE;
  OptimizerEntry* entry = find_entry(args[0]);
  observe::Tracer::thread_phase() = record::Phase::kForward;
  if (entry == nullptr) Py_RETURN_NONE;
  const bool bad = entry->looks_after && wrote_non_finite(*entry);
  PyObject* r = bad ? call_cold("on_written", args[0]) : Py_NewRef(Py_None);
  if (!bad && entry->clears_trace) {
    // Once for each optimizer: what its first step has made is there to be named.
    if (keeps_last_step() && entry->step == 1 && r != nullptr) {
      Py_DECREF(r);
      r = call_cold("on_kept", args[0]);
    }
    end_traced_window();
  }
  entry->clears_trace = false;
  finish_commit(*entry);
  if (r == nullptr) return nullptr;
  Py_DECREF(r);
  Py_RETURN_NONE;
}

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
