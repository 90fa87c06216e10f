// Every difference between the frame, generator and weak reference layouts of CPython 3.10 to 3.13 (bytecode:
// python_bytecode.h). Other files go through these functions; none of them names a private field.
#pragma once

#include <Python.h>

#include <cstdint>

#include "pyhost/object_python.h"

#if PY_VERSION_HEX < 0x030a0000 || PY_VERSION_HEX >= 0x030e0000
#error "finitude knows the frame layouts of CPython 3.10 to 3.13 only"
#endif
#ifdef Py_GIL_DISABLED
#error "finitude needs the GIL: other threads must not run while a stack is read"
#endif
#if PY_VERSION_HEX >= 0x030b0000
// The internal headers refuse to be included without Py_BUILD_CORE. It is defined around them only: elsewhere it would
// change what Python.h declares.
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

// From 3.12 on the compiler omits the check for an unbound local (LOAD_FAST instead of LOAD_FAST_CHECK) where it has
// proved that the local is bound. A null put into such a local would be dereferenced. See lost_value() in
// frames_memory.cpp.
inline constexpr bool kLocalsMayBeUnbound = PY_VERSION_HEX < 0x030c0000;

// ---- frames ----------------------------------------------------------------------------------------------

// Borrowed: a frame holds its code object for as long as it exists. From 3.13 on the field may hold None instead, in
// frames that the interpreter makes for itself; frame_is_visible() excludes these.
inline PyCodeObject* frame_code(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030d0000
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
#else
  return frame->f_code;
#endif
}

// The code unit that is being executed; may be an inline cache entry of the instruction before it.
// 3.13 has the instruction under way in the frame (instr_ptr), 3.11 and 3.12 the one before the next (prev_instr), and
// 3.10 an index (f_lasti); for a frame that waits in a call all of these lie within the call.
inline int frame_site(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return _PyInterpreterFrame_LASTI(frame);
#else
  return frame->f_lasti;
#endif
}

// When Python code called by Python code returns, the caller continues this many code units behind its position (3.12
// and later). It is valid only while the frame waits in such a call, and it depends on the instruction: position and
// offset have to be set together.
inline int frame_return_offset([[maybe_unused]] RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030c0000
  return frame->return_offset;
#else
  return 0;
#endif
}

// Makes a frame that waits in a call of Python code by Python code continue at another place when that call returns.
// The caller proves that this code waited there with as many values on its stack and with that offset; otherwise the
// interpreter would pop values that are not there. Not possible in 3.10, where the interpreter keeps the next
// instruction in a local variable of C for as long as the call runs.
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

// The interpreter's frame behind a frame object, borrowed. From 3.11 on the two differ: frame objects are made only on
// request, and the interpreter's frame is reused as soon as the function returns.
inline RawFrame* raw_frame(PyObject* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return reinterpret_cast<PyFrameObject*>(frame)->f_frame;
#else
  return reinterpret_cast<PyFrameObject*>(frame);
#endif
}

// False for frames that do not run Python code (yet): those that mark an entry from C, and those in which cells and
// captured variables are still being set up. What their slots hold is not complete. This is the interpreter's own test
// (_PyFrame_IsIncomplete).
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

// The frame itself, or the nearest one outward that can be read; null at the end of the stack.
inline RawFrame* visible_from(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  while (frame != nullptr && !frame_is_visible(frame)) frame = frame->previous;
#else
  while (frame != nullptr && !frame_is_visible(frame)) frame = frame->f_back;
#endif
  return frame;
}

// The innermost frame of this thread that can be read; null where no Python code runs. Valid until that code returns,
// so no caller keeps it beyond one call of a hook. The GIL is held.
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

// The caller's frame, or null. Walking outward is safe only while this thread holds the GIL and runs no Python code:
// the frames below would be popped and their memory reused.
inline RawFrame* outer_frame(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return visible_from(frame->previous);
#else
  return visible_from(frame->f_back);
#endif
}

// Both borrowed. f_locals is null in functions unless something has asked for it; in modules and class bodies it is the
// dict that holds the names.
inline PyObject* frame_globals(RawFrame* frame) { return frame->f_globals; }
inline PyObject* frame_locals(RawFrame* frame) { return frame->f_locals; }

// Arguments, locals, cells and free variables in one array.
// In 3.11 and later the value stack lies behind it in the same array.
inline PyObject** frame_fast(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->localsplus;
#else
  return frame->f_localsplus;
#endif
}

// The number of slots in frame_fast(). The value stack begins right behind them.
inline int code_fast_count(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  return code->co_nlocalsplus;
#else
  return static_cast<int>(code->co_nlocals + PyTuple_GET_SIZE(code->co_cellvars) + PyTuple_GET_SIZE(code->co_freevars));
#endif
}

// Slots whose variable may live in a cell object, because an inner function reads it too. From 3.11 on such a slot can
// hold the bare value until MAKE_CELL has run, so callers check the object with PyCell_Check as well.
inline bool fast_is_cell(PyCodeObject* code, int index) {
#if PY_VERSION_HEX >= 0x030b0000
  return (PyBytes_AS_STRING(code->co_localspluskinds)[index] & (CO_FAST_CELL | CO_FAST_FREE)) != 0;
#else
  return index >= code->co_nlocals;
#endif
}

// The name of a slot, borrowed from the code object.
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

// First argument of a running function, borrowed; null where it was deleted. If an inner function captured it, 3.11 and
// later put the cell into the argument's slot. 3.10 empties the slot and keeps the cell behind the locals; co_cell2arg
// gives the argument that belongs to each cell.
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

// The lowest value of the frame's stack. How many follow: frame_stack_depth(), or else the analysis of the bytecode.
inline PyObject** frame_stack(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->localsplus + code_fast_count(frame_code(frame));
#else
  return frame->f_valuestack;
#endif
}

// Values on the frame's stack, or -1 while the interpreter keeps the count in a variable of its own. It stores the
// count when one Python function calls another without C in between (3.11 and later), and when a generator is
// suspended. While the frame waits for C code the field is -1, and in 3.10 it is -1 for every frame that runs.
inline int frame_stack_depth(RawFrame* frame) {
#if PY_VERSION_HEX >= 0x030b0000
  const int depth = frame->stacktop - code_fast_count(frame_code(frame));
#else
  const int depth = frame->f_stackdepth;
#endif
  return depth >= 0 && depth <= frame_code(frame)->co_stacksize ? depth : -1;
}

// 3.10 keeps open try and with blocks in the frame; later versions derive them from the instruction.
// One number for all of them, only good for a comparison: a frame that returns into other try or with blocks would
// handle an exception wrongly, or pop the wrong values when it leaves one.
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

// Does the frame belong to a generator or coroutine? It then outlives the call that runs it.
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

// The states of the interpreter are ordered: all below FRAME_EXECUTING are resumable (3.13 has one more of these than
// 3.11), all above are finished or cleared. In 3.10 a finished generator has no frame.
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

// Borrowed. From 3.11 on the frame lies inside the generator object; in 3.10 it is an object that the generator owns.
// Valid for generators that are not finished.
inline RawFrame* generator_frame(PyObject* generator) {
#if PY_VERSION_HEX >= 0x030b0000
  return reinterpret_cast<RawFrame*>(reinterpret_cast<PyGenObject*>(generator)->gi_iframe);
#else
  return reinterpret_cast<PyGenObject*>(generator)->gi_frame;
#endif
}

// ---- weak references -------------------------------------------------------------------------------------

// From 3.12 on a class may keep its weak references in front of the object (managed) instead of in a field of it.
inline bool type_has_weakrefs(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030c0000
  return PyType_SUPPORTS_WEAKREFS(type) || (type->tp_flags & Py_TPFLAGS_MANAGED_WEAKREF) != 0;
#else
  return PyType_SUPPORTS_WEAKREFS(type);
#endif
}

// Borrowed; null when the object has died. An object with no references left is being destroyed at this moment,
// although its weak references are not cleared yet: to take a reference to it would bring it back half destroyed.
inline PyObject* weak_object(PyObject* reference) {
  PyObject* object = reinterpret_cast<PyWeakReference*>(reference)->wr_object;
  return object == Py_None || Py_REFCNT(object) <= 0 ? nullptr : object;
}

// Does it refer to this object, which the caller knows to be alive? Reads one field; no reference is taken.
inline bool weak_is(PyObject* reference, PyObject* alive) {
  return reinterpret_cast<PyWeakReference*>(reference)->wr_object == alive;
}

// ---- dictionaries ----------------------------------------------------------------------------------------

// Changes when a dictionary's entries move or their number changes: a position inside it would then mean another entry.
// The table of keys is reallocated when it grows; the iterator itself checks the number only.
inline std::uintptr_t dict_layout(PyObject* dict) {
  auto* object = reinterpret_cast<PyDictObject*>(dict);
  return reinterpret_cast<std::uintptr_t>(object->ma_keys) ^ static_cast<std::uintptr_t>(object->ma_used);
}

// Changes with every change of the dictionary, and never comes back, not in another one either (PEP 509). An equal tag
// thus proves equal contents without a look at them. It is deprecated because a dictionary of 3.12 can call a watcher
// instead; 3.10 and 3.11 have no watchers.
inline std::uint64_t dict_version(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

// ---- iterators -------------------------------------------------------------------------------------------

// A class without __next__ gets a tp_iternext that only raises (_PyObject_NextNotImplemented), which 3.13 does not
// export. Its address is read from an empty class, made at the first call. That runs Python code, so set_type_rules()
// makes the first call before any stack is read.
// Does the type have a next of its own? An object of a type without one holds no position of a loop.
inline bool type_iterates(PyTypeObject* type) {
  static const iternextfunc absent = [] {
    const Object plain =
        Object::take(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "plain"));
    PyErr_Clear();
    return plain ? reinterpret_cast<PyTypeObject*>(plain.get())->tp_iternext : nullptr;
  }();
  return type->tp_iternext != nullptr && type->tp_iternext != absent;
}

// Fields behind the object header, one letter a word; the letters are explained in frames_layouts.h.
#if PY_VERSION_HEX >= 0x030c0000
// 3.12 removed the index: the iterator advances its start instead.
inline constexpr const char* kRangeIteratorFields = "nnn";  // start, step, len
inline constexpr const char* kLongRangeIteratorFields = "ppp";
#else
inline constexpr const char* kRangeIteratorFields = "nnnn";  // index, start, step, len
inline constexpr const char* kLongRangeIteratorFields = "pppp";
#endif
#if PY_VERSION_HEX >= 0x030b0000
// 3.11 keeps a reference to the number one, which the layout ignores.
inline constexpr const char* kEnumerateFields = "ni-p-";  // index, iterator, result, long index, one
#else
inline constexpr const char* kEnumerateFields = "ni-p";
#endif

}  // namespace finitude::bindings
