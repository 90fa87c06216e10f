// Every difference between the frame, generator and weak reference layouts of CPython 3.10 to 3.13 (bytecode:
// python_bytecode.h). Other files go through these functions; none of them names a private field.
#pragma once

#include <Python.h>

#include <cstdint>

#if PY_VERSION_HEX < 0x030a0000 || PY_VERSION_HEX >= 0x030e0000
#error "finitude knows the frame layouts of CPython 3.10 to 3.13 only"
#endif
#ifdef Py_GIL_DISABLED
#error "finitude needs the GIL: other threads must not run while a stack is read"
#endif
#if PY_VERSION_HEX >= 0x030b0000
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#endif
#else
#include <frameobject.h>
#endif

namespace finitude::bindings {

#if PY_VERSION_HEX >= 0x030b0000
using RawFrame = _PyInterpreterFrame;
#else
using RawFrame = PyFrameObject;
#endif

// From 3.12 on the compiler leaves out the check for an unbound local where it has proved one needless, so a
// local that was bound must not become unbound behind its back.
inline constexpr bool kLocalsMayBeUnbound = PY_VERSION_HEX < 0x030c0000;

// ---- frames ----------------------------------------------------------------------------------------------

inline PyCodeObject* frame_code(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030d0000
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
#else
  return frame->f_code;
#endif
}

// The code unit that is being executed; may be an inline cache entry of the instruction before it.
inline int frame_site(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return _PyInterpreterFrame_LASTI(frame);
#else
  return frame->f_lasti;
#endif
}

// Where the interpreter goes on when a call of Python by Python returns: so many units behind that place (3.12 and
// later).
inline int frame_return_offset([[maybe_unused]] RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030c0000
  return frame->return_offset;
#else
  return 0;
#endif
}

// The call that a frame waits in (Python called by Python) returns to another place, where this code waited with as
// many values on its stack and with that offset. In 3.10 the interpreter keeps the place to itself, in a variable of C.
inline constexpr bool kFramesCanJump = PY_VERSION_HEX >= 0x030b0000;
inline void set_frame_site([[maybe_unused]] RawFrame* frame, [[maybe_unused]] int unit,
                           [[maybe_unused]] int return_offset) {
#if PY_VERSION_HEX >= 0x030d0000
  frame->instr_ptr = _PyCode_CODE(frame_code(frame)) + unit;
#elif PY_VERSION_HEX >= 0x030b0000
  frame->prev_instr = _PyCode_CODE(frame->f_code) + unit;
#endif
#if PY_VERSION_HEX >= 0x030c0000
  frame->return_offset = static_cast<std::uint16_t>(return_offset);
#endif
}

// What a frame object of Python's stands for.
inline RawFrame* raw_frame(PyObject* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return reinterpret_cast<PyFrameObject*>(frame)->f_frame;
#else
  return reinterpret_cast<PyFrameObject*>(frame);
#endif
}

// Not so: frames that do not run Python code (yet), which mark an entry from C or set up arguments.
inline bool frame_is_visible(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030c0000
  if (frame->owner == FRAME_OWNED_BY_CSTACK) return false;
#endif
#if PY_VERSION_HEX >= 0x030d0000
  if (frame->f_executable == nullptr || !PyCode_Check(frame->f_executable)) return false;
#endif
#if PY_VERSION_HEX >= 0x030b0000
  return frame->owner == FRAME_OWNED_BY_GENERATOR || frame_site(frame) >= frame_code(frame)->_co_firsttraceable;
#else
  return frame->f_lasti >= 0;
#endif
}

inline RawFrame* visible_from(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  while (frame != nullptr && !frame_is_visible(frame)) frame = frame->previous;
#else
  while (frame != nullptr && !frame_is_visible(frame)) frame = frame->f_back;
#endif
  return frame;
}

inline RawFrame* current_frame() {
  PyThreadState* thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030d0000
  return visible_from(thread->current_frame);
#elif PY_VERSION_HEX >= 0x030b0000
  return visible_from(thread->cframe->current_frame);
#else
  return visible_from(thread->frame);
#endif
}

inline RawFrame* outer_frame(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return visible_from(frame->previous);
#else
  return visible_from(frame->f_back);
#endif
}

inline PyObject* frame_globals(RawFrame* frame) { return frame->f_globals; }
inline PyObject* frame_locals(RawFrame* frame) { return frame->f_locals; }

// Arguments, locals, cells and free variables in one array.
inline PyObject** frame_fast(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->localsplus;
#else
  return frame->f_localsplus;
#endif
}

inline int code_fast_count(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  return code->co_nlocalsplus;
#else
  return static_cast<int>(code->co_nlocals + PyTuple_GET_SIZE(code->co_cellvars) + PyTuple_GET_SIZE(code->co_freevars));
#endif
}

// Slots in which a cell stands for the variable.
inline bool fast_is_cell(PyCodeObject* code, int index) {
#if PY_VERSION_HEX >= 0x030b0000
  return (PyBytes_AS_STRING(code->co_localspluskinds)[index] & (CO_FAST_CELL | CO_FAST_FREE)) != 0;
#else
  return index >= code->co_nlocals;
#endif
}

inline PyObject* fast_name(PyCodeObject* code, int index) {
#if PY_VERSION_HEX >= 0x030b0000
  return PyTuple_GET_ITEM(code->co_localsplusnames, index);
#else
  if (index < code->co_nlocals) return PyTuple_GET_ITEM(code->co_varnames, index);
  index -= code->co_nlocals;
  const int cells = static_cast<int>(PyTuple_GET_SIZE(code->co_cellvars));
  return index < cells ? PyTuple_GET_ITEM(code->co_cellvars, index)
                       : PyTuple_GET_ITEM(code->co_freevars, index - cells);
#endif
}

// First argument of a running function, also where a nested function captured it; borrowed.
inline PyObject* frame_first_argument(RawFrame* frame) {
  PyCodeObject* code = frame_code(frame);
  if (code->co_argcount < 1) return nullptr;
  PyObject* value = frame_fast(frame)[0];
#if PY_VERSION_HEX >= 0x030b0000
  if (value != nullptr && fast_is_cell(code, 0) && PyCell_Check(value)) value = PyCell_GET(value);
#else
  for (Py_ssize_t i = 0; value == nullptr && code->co_cell2arg != nullptr && i < PyTuple_GET_SIZE(code->co_cellvars);
       ++i) {
    PyObject* cell = code->co_cell2arg[i] == 0 ? frame_fast(frame)[code->co_nlocals + i] : nullptr;
    if (cell != nullptr && PyCell_Check(cell)) value = PyCell_GET(cell);
  }
#endif
  return value;
}

inline PyObject** frame_stack(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->localsplus + code_fast_count(frame_code(frame));
#else
  return frame->f_valuestack;
#endif
}

// Values on the frame's stack, or -1 while the interpreter keeps the count to itself (during a call into C).
inline int frame_stack_depth(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  const int depth = frame->stacktop - code_fast_count(frame_code(frame));
#else
  const int depth = frame->f_stackdepth;
#endif
  return depth >= 0 && depth <= frame_code(frame)->co_stacksize ? depth : -1;
}

// 3.10 keeps open try and with blocks in the frame; later versions derive them from the instruction.
inline int frame_open_blocks(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  (void)frame;
  return 0;
#else
  int sum = frame->f_iblock;
  for (int i = 0; i < frame->f_iblock && i < CO_MAXBLOCKS; ++i) {
    const PyTryBlock& block = frame->f_blockstack[i];
    sum = sum * 31 + block.b_type * 7 + block.b_handler * 3 + block.b_level;
  }
  return sum;
#endif
}

inline bool frame_is_generator(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->owner == FRAME_OWNED_BY_GENERATOR;
#else
  return frame->f_gen != nullptr;
#endif
}

// ---- generators ------------------------------------------------------------------------------------------

// Generators and coroutines share one layout.
inline bool is_generator(PyObject* object) { return PyGen_CheckExact(object) || PyCoro_CheckExact(object); }

enum class GeneratorState { kSuspended, kRunning, kFinished };

inline GeneratorState generator_state(PyObject* generator) {
  auto* gen = reinterpret_cast<PyGenObject*>(generator);
#if PY_VERSION_HEX >= 0x030b0000
  const int state = gen->gi_frame_state;
#else
  if (gen->gi_frame == nullptr) return GeneratorState::kFinished;
  const int state = gen->gi_frame->f_state;
#endif
  if (state == FRAME_EXECUTING) return GeneratorState::kRunning;
  return state < FRAME_EXECUTING ? GeneratorState::kSuspended : GeneratorState::kFinished;
}

// Valid for generators that are not finished.
inline RawFrame* generator_frame(PyObject* generator) {
#if PY_VERSION_HEX >= 0x030b0000
  return reinterpret_cast<RawFrame*>(reinterpret_cast<PyGenObject*>(generator)->gi_iframe);
#else
  return reinterpret_cast<PyGenObject*>(generator)->gi_frame;
#endif
}

// ---- weak references -------------------------------------------------------------------------------------

inline bool type_has_weakrefs(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030c0000
  return PyType_SUPPORTS_WEAKREFS(type) || (type->tp_flags & Py_TPFLAGS_MANAGED_WEAKREF) != 0;
#else
  return PyType_SUPPORTS_WEAKREFS(type);
#endif
}

// Borrowed; null when the object has died.
inline PyObject* weak_object(PyObject* reference) {
  PyObject* object = reinterpret_cast<PyWeakReference*>(reference)->wr_object;
  return object == Py_None || Py_REFCNT(object) <= 0 ? nullptr : object;
}

// Does it refer to this object, which is alive? One look at the reference.
inline bool weak_is(PyObject* reference, PyObject* alive) {
  return reinterpret_cast<PyWeakReference*>(reference)->wr_object == alive;
}

// ---- dictionaries ----------------------------------------------------------------------------------------

// Changes when a dictionary's entries move, so that a position inside it would mean something else.
inline std::uintptr_t dict_layout(PyObject* dict) {
  auto* object = reinterpret_cast<PyDictObject*>(dict);
  return reinterpret_cast<std::uintptr_t>(object->ma_keys) ^ static_cast<std::uintptr_t>(object->ma_used);
}

// Changes with every change of the dictionary, and never comes back, not in another one either (PEP 509). Deprecated
// because a dictionary of 3.12 can call a watcher instead, which 3.10 and 3.11 do not have.
inline std::uint64_t dict_version(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

// ---- iterators -------------------------------------------------------------------------------------------

// Classes written in Python have a next that only raises, unless they define one; 3.13 does not export it.
inline bool type_iterates(PyTypeObject* type) {
  static const iternextfunc absent = [] {
    PyObject* plain = PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "plain");
    const iternextfunc next = plain == nullptr ? nullptr : reinterpret_cast<PyTypeObject*>(plain)->tp_iternext;
    PyErr_Clear();
    Py_XDECREF(plain);
    return next;
  }();
  return type->tp_iternext != nullptr && type->tp_iternext != absent;
}

// Fields behind the object header, one letter a word; the letters are explained in frames_layouts.h.
#if PY_VERSION_HEX >= 0x030c0000
inline constexpr const char* kRangeIteratorFields = "nnn";  // start, step, len
inline constexpr const char* kLongRangeIteratorFields = "ppp";
#else
inline constexpr const char* kRangeIteratorFields = "nnnn";  // index, start, step, len
inline constexpr const char* kLongRangeIteratorFields = "pppp";
#endif
#if PY_VERSION_HEX >= 0x030b0000
inline constexpr const char* kEnumerateFields = "ni-p-";  // index, iterator, result, long index, one
#else
inline constexpr const char* kEnumerateFields = "ni-p";
#endif

}  // namespace finitude::bindings
