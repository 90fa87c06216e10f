// What the instructions of CPython 3.10 to 3.13 do to the stack and where they go on: every difference between the
// versions.
#pragma once

#include <Python.h>
#include <opcode.h>

namespace finitude::bindings {

// New reference to the code's bytes as the compiler wrote them (no specialised or instrumented instructions).
inline PyObject* code_bytes(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  return PyCode_GetCode(code);
#else
  Py_INCREF(code->co_code);
  return code->co_code;
#endif
}

inline PyObject* code_handlers(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  return code->co_exceptiontable;
#else
  (void)code;
  return nullptr;  // the block instructions say it
#endif
}

inline bool op_is_cache(int op) {
#ifdef CACHE
  return op == CACHE;
#else
  (void)op;
  return false;
#endif
}

// Values on the stack when a code object's first instruction runs: 3.10 resumes generators with one.
inline int code_entry_depth(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  (void)code;
  return 0;
#else
  return (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0 ? 1 : 0;
#endif
}

// Change of the stack's depth, or INT_MAX for an unknown instruction.
inline int op_stack_effect(int op, int argument, bool jump) {
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
  // The generator is resumed with a value on its stack, which the compiler does not count.
  if (op == RETURN_GENERATOR) return 1;
#endif
  return PyCompile_OpcodeStackEffectWithJump(op, op >= HAVE_ARGUMENT ? argument : 0, jump ? 1 : 0);
}

// Code unit that `op` may jump to, or -1. `next` is the unit after the instruction and its cache entries.
inline int op_jump_target(int op, int argument, int next) {
  switch (op) {
    case FOR_ITER:
    case JUMP_FORWARD:
#if PY_VERSION_HEX < 0x030b0000
    case SETUP_FINALLY:
    case SETUP_WITH:
    case SETUP_ASYNC_WITH:
      return next + argument;
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case JUMP_ABSOLUTE:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case JUMP_IF_NOT_EXC_MATCH:
      return argument;
#elif PY_VERSION_HEX < 0x030c0000
    case SEND:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
      return next + argument;
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return next - argument;
#else
    case SEND:
    case POP_JUMP_IF_FALSE:
    case POP_JUMP_IF_TRUE:
    case POP_JUMP_IF_NONE:
    case POP_JUMP_IF_NOT_NONE:
      return next + argument;
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
      return next - argument;
#endif
    default:
      return -1;
  }
}

inline bool op_never_falls_through(int op) {
  switch (op) {
    case RETURN_VALUE:
    case RAISE_VARARGS:
    case RERAISE:
    case JUMP_FORWARD:
#if PY_VERSION_HEX < 0x030b0000
    case JUMP_ABSOLUTE:
#else
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
#endif
#ifdef RETURN_CONST
    case RETURN_CONST:
#endif
      return true;
    default:
      return false;
  }
}

// How a call instruction uses the stack: the values it takes, and where among them the callable lies.
struct CallShape {
  int taken = -1;        // -1: not a call
  int callable = 0;      // offset from the lowest value taken
  bool or_next = false;  // a null there means that the callable is the next one up
};

inline CallShape op_call_shape(int op, int argument) {
  switch (op) {
#if PY_VERSION_HEX < 0x030b0000
    case CALL_FUNCTION:
      return {argument + 1, 0, false};
    case CALL_METHOD:
      return {argument + 2, 0, true};
    case CALL_FUNCTION_KW:
      return {argument + 2, 0, false};
    case CALL_FUNCTION_EX:
      return {2 + (argument & 1), 0, false};
#elif PY_VERSION_HEX < 0x030d0000
    case CALL:
      return {argument + 2, 0, true};
    case CALL_FUNCTION_EX:
      return {3 + (argument & 1), 0, true};
#ifdef PRECALL
    case PRECALL:
      return {argument + 2, 0, true};
#endif
#else
    case CALL:
      return {argument + 2, 0, false};
    case CALL_KW:
      return {argument + 3, 0, false};
    case CALL_FUNCTION_EX:
      return {3 + (argument & 1), 0, false};
#endif
    default:
      return {};
  }
}

// Delegating to another generator: the receiver stays on the stack, the value sent does not.
inline bool op_sends(int op) {
#ifdef SEND
  return op == SEND;
#else
  return op == YIELD_FROM;
#endif
}

// 3.11 calls in two instructions; builtins may run in the first or in the second.
inline bool op_is_first_half_of_call(int op) {
#ifdef PRECALL
  return op == PRECALL;
#else
  (void)op;
  return false;
#endif
}

}  // namespace finitude::bindings
