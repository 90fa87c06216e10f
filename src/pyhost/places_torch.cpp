#include "pyhost/places_torch.h"

#include <Python.h>

#include <string>
#include <string_view>
#include <vector>

#include "observe/tracer_torch.h"
#include "pyhost/object_python.h"
#include "pyhost/script_lines_torch.h"
#include "pyhost/user_stack.h"

namespace finitude::bindings {
namespace {

constexpr int kMaxFrames = 32;

// The key under which `outer` holds `inner`, through at most two containers (ModuleList, ModuleDict).
bool path_between(PyObject* outer, PyObject* inner, int depth, std::string* path) {
  // Names as state_dict() shows them. It takes the attribute itself, since named_modules() would walk over all of the
  // model, and a class may override it. The values are borrowed from the dict, which is held meanwhile.
  const Object modules = Object::take(PyObject_GetAttrString(outer, "_modules"));
  if (!modules) {
    PyErr_Clear();
    return false;
  }
  bool found = false;
  if (PyDict_Check(modules.get())) {
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (!found && PyDict_Next(modules.get(), &pos, &key, &value)) {
      const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
      if (name == nullptr || value == Py_None) continue;
      std::string below;
      if (value == inner) {
        *path = name;
        found = true;
      } else if (depth > 0 && path_between(value, inner, depth - 1, &below)) {
        *path = std::string(name) + "." + below;
        found = true;
      }
    }
  }
  PyErr_Clear();
  return found;
}

// The class of the outermost running module, and the names from there inward: "Net.encoder.0". A module that its caller
// does not hold as a submodule adds nothing. `thread_local` keeps the vector's memory from call to call; its references
// are borrowed from the frames, which do not return meanwhile.
std::string module_name() {
  thread_local std::vector<PyObject*> selves;
  current_module_self(&selves);
  // torch.compile's wrapper is not of the user's making: the module inside it is the one they know.
  const auto wraps = [](PyObject* self) {
    return std::string_view(Py_TYPE(self)->tp_name).ends_with("OptimizedModule");
  };
  while (selves.size() > 1 && wraps(selves.back())) selves.pop_back();
  if (selves.empty()) return {};
  std::string name = Py_TYPE(selves.back())->tp_name;
  if (const auto dot = name.rfind('.'); dot != std::string::npos) name = name.substr(dot + 1);
  for (std::size_t i = selves.size() - 1; i-- > 0;) {
    std::string key;
    if (path_between(selves[i + 1], selves[i], 2, &key)) name += "." + key;
  }
  return name;
}

// The frames' code and instructions, and the modules that are running, by their addresses.
bool place_key(std::string* bytes) {
  if (!Py_IsInitialized()) return false;
  // Backward runs operators on threads of the autograd engine, which do not hold the GIL. They may still run when the
  // interpreter has ended, hence the check above.
  const PyGILState_STATE gil = PyGILState_Ensure();
  FrameId ids[kMaxFrames];
  const int count = user_stack_ids(ids, kMaxFrames);
  bytes->assign(reinterpret_cast<const char*>(ids), static_cast<std::size_t>(count) * sizeof(FrameId));
  thread_local std::vector<PyObject*> selves;
  current_module_self(&selves);
  for (PyObject* self : selves) {  // with its type: another module may have come to lie there
    const PyObject* both[] = {self, reinterpret_cast<PyObject*>(Py_TYPE(self))};
    bytes->append(reinterpret_cast<const char*>(both), sizeof both);
  }
  add_script_key(bytes);
  PyGILState_Release(gil);
  return true;
}

}  // namespace

const observe::Places& places() {
  static constexpr observe::Places both{&place_key, &current_place};
  return both;
}

bool current_place(record::Stack* stack) {
  if (!Py_IsInitialized()) return false;
  const PyGILState_STATE gil = PyGILState_Ensure();
  // TorchScript's frames are inside the innermost Python frame, so they come first.
  user_stack(&stack->frames, kMaxFrames);
  const std::vector<record::Frame> script = script_frames(kMaxFrames);
  stack->frames.insert(stack->frames.begin(), script.begin(), script.end());
  if (script.empty() && !stack->frames.empty()) stack->statement_context = script_derivative();
  if (!stack->frames.empty()) {
    stack->module = module_name();
    stack->in_optimizer = in_method_of_optimizer();
  }
  PyGILState_Release(gil);
  return true;
}

}  // namespace finitude::bindings
