// A bare extension module around the frame machinery, so that tests can drive it without torch.
#include <chrono>
#include <cstdio>

#include "pyhost/object_python.h"
#include "pyhost/python_compat.h"
#include "pyhost/user_stack.h"
#include "rewind/frames_python.h"

namespace {

using finitude::bindings::Object;
using finitude::bindings::StackSnapshot;

bool keep_leaf(PyObject* tensor, void*) {
  const Object leaf = Object::take(PyObject_GetAttrString(tensor, "leaf"));
  PyErr_Clear();
  return leaf.get() == Py_True;
}

// A tensor may carry its own stand-in.
void stand_in(PyObject* tensor, void*, finitude::bindings::StandIn* out) {
  out->object = Object::take(PyObject_GetAttrString(tensor, "equal"));
  if (!out->object) PyErr_Clear();
}

const finitude::bindings::SnapshotOptions kOptions{keep_leaf, stand_in, nullptr};

StackSnapshot* unpack(PyObject* capsule) {
  return static_cast<StackSnapshot*>(PyCapsule_GetPointer(capsule, "snapshot"));
}

void destroy(PyObject* capsule) { delete unpack(capsule); }

PyObject* make(PyObject*, PyObject*) { return PyCapsule_New(new StackSnapshot, "snapshot", destroy); }

PyObject* take(PyObject*, PyObject* capsule) {
  StackSnapshot* snapshot = unpack(capsule);
  if (snapshot == nullptr) return nullptr;
  snapshot->take(kOptions);
  Py_RETURN_NONE;
}

PyObject* clear(PyObject*, PyObject* capsule) {
  StackSnapshot* snapshot = unpack(capsule);
  if (snapshot == nullptr) return nullptr;
  snapshot->clear();
  Py_RETURN_NONE;
}

PyObject* can_restore(PyObject*, PyObject* capsule) {
  StackSnapshot* snapshot = unpack(capsule);
  if (snapshot == nullptr) return nullptr;
  const auto verdict = snapshot->can_restore();
  return Py_BuildValue("Ns", PyBool_FromLong(verdict.possible), verdict.reason.c_str());
}

PyObject* restore(PyObject*, PyObject* capsule) {
  StackSnapshot* snapshot = unpack(capsule);
  if (snapshot == nullptr) return nullptr;
  std::string why;
  const bool done = snapshot->restore(&why);
  PyObject* unset = PyList_New(0);
  for (const std::string& name : snapshot->unset_names()) {
    const Object text = Object::take(PyUnicode_FromString(name.c_str()));
    PyList_Append(unset, text.get());
  }
  return Py_BuildValue("NsN", PyBool_FromLong(done), why.c_str(), unset);
}

std::vector<PyTypeObject*> types_of(PyObject* tuple) {
  std::vector<PyTypeObject*> out;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    out.push_back(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(tuple, i)));
  }
  return out;
}

// init(prefixes, tensor type or None, external types, module call codes), the lists as tuples
PyObject* init(PyObject*, PyObject* args) {
  PyObject *prefixes, *tensor, *external, *codes;
  if (PyArg_ParseTuple(args, "O!OO!O!", &PyTuple_Type, &prefixes, &tensor, &PyTuple_Type, &external, &PyTuple_Type,
                       &codes) == 0) {
    return nullptr;
  }
  finitude::bindings::FrameRules rules;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefixes); ++i) {
    rules.library_prefixes.emplace_back(PyUnicode_AsUTF8(PyTuple_GET_ITEM(prefixes, i)));
  }
  if (tensor != Py_None) rules.tensor_type = reinterpret_cast<PyTypeObject*>(tensor);
  rules.external_iterators = types_of(external);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); ++i) rules.module_calls.push_back(PyTuple_GET_ITEM(codes, i));
  finitude::bindings::set_frame_rules(rules);
  Py_RETURN_NONE;
}

PyObject* stack(PyObject*, PyObject* most) {
  std::vector<finitude::record::Frame> frames;
  finitude::bindings::user_stack(&frames, static_cast<int>(PyLong_AsLong(most)));
  PyObject* out = PyList_New(0);
  for (const auto& frame : frames) {
    const Object item = Object::take(Py_BuildValue("sis", frame.file.c_str(), frame.line, frame.function.c_str()));
    PyList_Append(out, item.get());
  }
  return out;
}

PyObject* line(PyObject*, PyObject*) {
  std::string file, function;
  const int number = finitude::bindings::snapshot_user_line(&file, &function);
  return Py_BuildValue("sis", file.c_str(), number, function.c_str());
}

PyObject* modules(PyObject*, PyObject*) {
  std::vector<PyObject*> found;
  finitude::bindings::current_module_self(&found);
  PyObject* out = PyList_New(0);
  for (PyObject* self : found) PyList_Append(out, self);
  return out;
}

// Knows the iterator's type, and can set it back?
PyObject* goes_back(PyObject*, PyObject* iterator) {
  return PyBool_FromLong(finitude::bindings::type_info(Py_TYPE(iterator)).layout >= 0);
}

// Depth of the stack before each code unit as the analysis sees it, or None where the code is not understood.
PyObject* depths(PyObject*, PyObject* code) {
  auto* info = finitude::bindings::code_info(reinterpret_cast<PyCodeObject*>(code));
  if (!finitude::bindings::analyse(info)) Py_RETURN_NONE;
  PyObject* out = PyList_New(0);
  for (const auto& site : info->sites) {
    const Object item = Object::take(PyLong_FromLong(site.depth));
    PyList_Append(out, item.get());
  }
  return out;
}

// Frames from the caller outward: (function, depth the interpreter says or -1, depth the analysis says).
PyObject* both_depths(PyObject*, PyObject*) {
  using namespace finitude::bindings;
  PyObject* out = PyList_New(0);
  for (RawFrame* frame = current_frame(); frame != nullptr; frame = outer_frame(frame)) {
    CodeInfo* info = code_info(frame_code(frame));
    const CodeInfo::Site* site = site_at(info, frame_site(frame));
    const Object item = Object::take(Py_BuildValue("sii", info->function.c_str(), frame_stack_depth(frame),
                                                   site == nullptr ? -2 : static_cast<int>(site->survivors)));
    PyList_Append(out, item.get());
  }
  return out;
}

double nanoseconds(std::chrono::steady_clock::time_point since, long count) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - since).count() /
         static_cast<double>(count);
}

PyObject* time_take(PyObject*, PyObject* args) {
  PyObject* capsule;
  long count;
  if (PyArg_ParseTuple(args, "Ol", &capsule, &count) == 0) return nullptr;
  StackSnapshot* snapshot = unpack(capsule);
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < count; ++i) snapshot->take(kOptions);
  return PyFloat_FromDouble(nanoseconds(start, count));
}

PyObject* time_stack(PyObject*, PyObject* count_object) {
  const long count = PyLong_AsLong(count_object);
  std::vector<finitude::record::Frame> frames;
  finitude::bindings::FrameId ids[16];
  auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < count; ++i) finitude::bindings::user_stack(&frames, 8);
  const double full = nanoseconds(start, count);
  start = std::chrono::steady_clock::now();
  for (long i = 0; i < count; ++i) finitude::bindings::user_stack_ids(ids, 8);
  return Py_BuildValue("dd", full, nanoseconds(start, count));
}

// hook(snapshot, veto, state): one step as C code alone; state is [calls, marks, log, outcome].
PyObject* hook(PyObject*, PyObject* args) {
  PyObject *capsule, *state;
  long veto;
  if (PyArg_ParseTuple(args, "OlO!", &capsule, &veto, &PyList_Type, &state) == 0) return nullptr;
  const long calls = PyLong_AsLong(PyList_GET_ITEM(state, 0));
  PyList_SetItem(state, 0, PyLong_FromLong(calls + 1));
  const Object mark = Object::take(PyLong_FromSsize_t(PyList_GET_SIZE(PyList_GET_ITEM(state, 2))));
  PyList_Append(PyList_GET_ITEM(state, 1), mark.get());
  if (calls != veto) return take(nullptr, capsule);
  PyObject* outcome = restore(nullptr, capsule);
  if (outcome != nullptr) PyList_SetItem(state, 3, outcome);
  Py_RETURN_NONE;
}

PyMethodDef kMethods[] = {{"make", make, METH_NOARGS, nullptr},
                          {"take", take, METH_O, nullptr},
                          {"clear", clear, METH_O, nullptr},
                          {"can_restore", can_restore, METH_O, nullptr},
                          {"restore", restore, METH_O, nullptr},
                          {"init", init, METH_VARARGS, nullptr},
                          {"stack", stack, METH_O, nullptr},
                          {"line", line, METH_NOARGS, nullptr},
                          {"modules", modules, METH_NOARGS, nullptr},
                          {"goes_back", goes_back, METH_O, nullptr},
                          {"depths", depths, METH_O, nullptr},
                          {"both_depths", both_depths, METH_NOARGS, nullptr},
                          {"time_take", time_take, METH_VARARGS, nullptr},
                          {"time_stack", time_stack, METH_O, nullptr},
                          {"hook", hook, METH_VARARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "frames_test_module", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_frames_test_module() { return PyModule_Create(&kModule); }
