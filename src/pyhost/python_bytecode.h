// What the instructions of CPython 3.10 to 3.13 do to the value stack and where execution continues after them: every
// difference between the versions.
#pragma once

#include <Python.h>
#include <opcode.h>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// CPython changes its bytecode in every minor version. The analysis in frames_code.cpp has no version checks of its
// own; it relies on the functions below. Where they do not know an instruction, the analysis must fail as a whole: a
// wrong depth would make a snapshot read a word of the value stack that holds no object.

// The code's bytes as the compiler wrote them; empty with an error. From 3.11 on the interpreter specialises and
// instruments instructions in place. The copy has the original ones, which are all that the functions below know.
inline Object code_bytes(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  return Object::take(PyCode_GetCode(code));
#else
  return Object::share(code->co_code);
#endif
}

// The exception table of a code object, borrowed, or null in 3.10. It gives the start, the end, the handler and the
// stack depth of each try range. Without it, code that only an exception reaches would have no known depth.
inline PyObject* code_handlers(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  return code->co_exceptiontable;
#else
  (void)code;
  return nullptr;  // the block instructions say it
#endif
}

// Inline caches (3.11 and later) lie between instructions and are not executed. A frame may nevertheless report a cache
// entry as its position, so each entry has to be counted to the instruction before it.
inline bool op_is_cache(int op) {
#ifdef CACHE
  return op == CACHE;
#else
  (void)op;
  return false;
#endif
}

// Values on the stack when a code object's first instruction runs: 3.10 resumes generators with one.
// In 3.10 GEN_START, the first instruction of each of these, pops it. 3.11 and later have RETURN_GENERATOR instead.
inline int code_entry_depth(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030b0000
  (void)code;
  return 0;
#else
  return (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0 ? 1 : 0;
#endif
}

// Change of the stack's depth, or INT_MAX for an unknown instruction. For a jump the effect is that on the path that is
// named: FOR_ITER, SEND and the *_OR_POP jumps differ between the two. It comes from the compiler's own table, which
// the C API exports and which fits the version.
inline int op_stack_effect(int op, int argument, bool jump) {
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
  // The generator is resumed with a value on its stack, which the compiler does not count.
  // Without this value the depths after the instruction are too low by one, and POP_TOP, which follows it, makes the
  // depth negative. From 3.13 on the compiler counts the value.
  if (op == RETURN_GENERATOR) return 1;
#endif
  return PyCompile_OpcodeStackEffectWithJump(op, op >= HAVE_ARGUMENT ? argument : 0, jump ? 1 : 0);
}

// Code unit that `op` may jump to, or -1. `next` is the unit after the instruction and its cache entries.
// 3.10 has absolute and relative jumps. 3.11 has a forward and a backward form of each conditional jump. From 3.12 on
// conditional jumps are forward only, and JUMP_BACKWARD closes the loops. Arguments count code units in all of these.
// Handlers of exceptions are not targets here from 3.11 on; see code_handlers(). An instruction that is missing in this
// list would seem not to jump, so that code behind its target has no known depth: such code is refused, and not
// misread.
inline int op_jump_target(int op, int argument, int next) {
  switch (op) {
    case FOR_ITER:
    case JUMP_FORWARD:
#if PY_VERSION_HEX < 0x030b0000
    // Up to 3.10 the handler of a try block is a jump of the instruction that opens it.
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

// Instructions after which the next one in memory does not run. Without this list the analysis would walk from a return
// into the code behind it with the wrong depth, find two depths for one instruction, and reject the code object.
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
// While a call runs, the value stack of the caller holds the values below the call, which outlive it, and its operands.
// A snapshot compares and restores only the former: the interpreter drops the operands when the call returns.
struct CallShape {
  // Values that the call pops, with the callable and the nulls among them.
  int taken = -1;        // -1: not a call
  int callable = 0;      // offset from the lowest value taken
  bool or_next = false;  // a null there means that the callable is the next one up
};

// Up to 3.12 a method call has a null in the place of the callable, or the method there and `self` above it (or_next).
// From 3.13 on the callable is always the lowest value, followed by `self` or null. The keyword names of a CALL_KW are
// one more value; CALL_FUNCTION_EX takes a tuple and, with bit 0 of its argument, a dict.
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

// `yield from` and `await`. The receiver stays on the stack until it has ended; the value that is sent to it does not.
// 3.10 has one instruction for it, YIELD_FROM; from 3.11 on it is a loop around SEND.
inline bool op_sends(int op) {
#ifdef SEND
  return op == SEND;
#else
  return op == YIELD_FROM;
#endif
}

// 3.11 calls in two instructions; builtins may run in the first or in the second.
// Between the halves the stack is the same, so both count as one place: a snapshot taken in the one fits the other.
inline bool op_is_first_half_of_call(int op) {
#ifdef PRECALL
  return op == PRECALL;
#else
  (void)op;
  return false;
#endif
}

}  // namespace finitude::bindings
