#include "pyhost/user_stack.h"

#include <exception>

#include "pyhost/object_python.h"

namespace finitude::bindings {
namespace {

PyTypeObject* optimizer_type = nullptr;  // held for good

// Does this code belong to the method of that name of the type? Decorators are followed as far as they name what they
// wrap.
bool is_method(PyTypeObject* type, PyCodeObject* code) {
  // The frame has its code only, not its function. Each functools.wraps leaves the inner function in __wrapped__; a
  // chain may be a cycle, hence the bound.
  constexpr int kMostDecorators = 8;
  Object held = Object::share(_PyType_Lookup(type, code->co_name));
  for (int i = 0; held && PyFunction_Check(held.get()) && i < kMostDecorators; ++i) {
    if (PyFunction_GET_CODE(held.get()) == reinterpret_cast<PyObject*>(code)) return true;
    held = Object::take(PyObject_GetAttrString(held.get(), "__wrapped__"));
    PyErr_Clear();
  }
  return false;
}

}  // namespace

void set_optimizer_type(PyTypeObject* type) noexcept { optimizer_type = hold_for_good(type); }

// Fills a buffer of the caller's, as it runs for each recorded operator.
int user_stack_ids(FrameId* out, int max_frames) noexcept {
  int count = 0;
  try {
    walk_stack([&](RawFrame* frame, CodeInfo* info) {
      if (count >= max_frames) return false;
      if (!info->library) out[count++] = frame_id(info, frame_site(frame));
      return true;
    });
  } catch (const std::exception&) {
  }
  return count;
}

void user_stack(std::vector<record::Frame>* out, int max_frames) noexcept {
  constexpr int kMost = 256;
  FrameId ids[kMost];
  const int count = user_stack_ids(ids, max_frames < kMost ? max_frames : kMost);
  try {
    out->resize(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) (*out)[i] = frame_at(ids[i]);
  } catch (const std::exception&) {
    out->clear();
  }
}

int snapshot_user_line(std::string* file, std::string* function) noexcept {
  FrameId id = 0;
  if (user_stack_ids(&id, 1) == 0) return 0;
  const record::Frame& frame = frame_at(id);
  try {
    *file = frame.file;
    *function = frame.function;
  } catch (const std::exception&) {
    return 0;
  }
  return frame.line;
}

PyObject* function_names(PyObject* frame) {
  Object names = Object::take(PyDict_New());
  if (!names) return nullptr;
  RawFrame* raw = raw_frame(frame);
  PyCodeObject* code = frame_code(raw);
  for (int i = 0; i < code_fast_count(code); ++i) {
    PyObject* value = frame_fast(raw)[i];
    if (value != nullptr && fast_is_cell(code, i) && PyCell_Check(value)) value = PyCell_GET(value);
    if (value != nullptr && PyDict_SetItem(names.get(), fast_name(code, i), value) != 0) return nullptr;
  }
  return names.release();
}

// Only the innermost user frame decides, hence the walk ends there. The first argument may be anything in a function
// that is no method, so the class is asked whether its method of that name has this code.
bool in_method_of_optimizer() noexcept {
  bool found = false;
  try {
    walk_stack([&](RawFrame* frame, CodeInfo* info) {
      if (info->library) return true;
      PyObject* self = optimizer_type != nullptr && info->optimized ? frame_first_argument(frame) : nullptr;
      found = self != nullptr && PyType_IsSubtype(Py_TYPE(self), optimizer_type) != 0 &&
              is_method(Py_TYPE(self), frame_code(frame));
      return false;
    });
  } catch (const std::exception&) {
  }
  return found;
}

// The references are borrowed from running frames: valid until the hook that asked returns to the program.
void current_module_self(std::vector<PyObject*>* out) noexcept {
  try {
    out->clear();
    walk_stack([&](RawFrame* frame, CodeInfo* info) {
      PyObject* self = info->module_call ? frame_first_argument(frame) : nullptr;
      if (self != nullptr) out->push_back(self);
      return true;
    });
  } catch (const std::exception&) {
    out->clear();
  }
}

}  // namespace finitude::bindings
