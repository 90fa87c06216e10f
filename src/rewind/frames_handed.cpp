// C code that was given iterators and calls back for each of their values, as in list(map(train, settings)): the value
// at which it has arrived. Such code holds a position in variables of C that no snapshot can set back. But as long as
// its iterators have not moved it is in the same call of the same value, and nothing has to be set back.
#include "rewind/frames_memory.h"

namespace finitude::bindings {
namespace {

// Visits the iterators among the arguments of the C call that a frame waits in. None where a function is among the
// arguments too: it may be called for values that were drawn before (sorted(values, key=...)), and the iterators then
// say nothing about the position. Returns whether there are any. The frame must be of this thread; references are
// borrowed.
template <typename Visit>
bool handed_iterators(RawFrame* frame, CodeInfo* info, Visit visit) {
  if (frame_stack_depth(frame) >= 0) return false;  // Python code called
  const CodeInfo::Site* site = site_at(info, frame_site(frame));
  if (site == nullptr || site->callable < 0 || site->draws) return false;
  PyObject** stack = frame_stack(frame);
  const int callee = site->callable + (stack[site->callable] == nullptr && site->callable_or_next ? 1 : 0);
  bool any = false;
  for (int i = callee + 1; i < site->depth; ++i) {
    if (stack[i] == nullptr) continue;
    if (type_info(Py_TYPE(stack[i])).layout >= 0)
      any = true;
    else if (PyCallable_Check(stack[i]) != 0)
      return false;
  }
  // A second pass, because a function that comes after an iterator rules out all of them.
  for (int i = callee + 1; any && i < site->depth; ++i) {
    if (stack[i] != nullptr && type_info(Py_TYPE(stack[i])).layout >= 0) visit(stack[i]);
  }
  return any;
}

// The positions of all of them in one number; 0: there are none, or one of them has a position that cannot be read.
template <typename Visit>
std::uint64_t handed_at(RawFrame* frame, CodeInfo* info, Visit visit) {
  std::uint64_t sum = 1;
  const bool any = handed_iterators(frame, info, [&](PyObject* iterator) {
    const std::uint64_t at = position_of(iterator);
    sum = sum != 0 && at != 0 ? (sum ^ at) * 0x100000001b3ull | 1 : 0;
    visit(iterator);
  });
  return any ? sum : 0;
}

}  // namespace

bool FrameMemory::hands_iterators(RawFrame* frame, CodeInfo* info) {
  return handed_iterators(frame, info, [](PyObject*) {});
}

// Runs again in each step, as the C code moves on to its next value. References are not dropped here but given to the
// keeper: the last one to an iterator may run the program's code while the stack is being read.
void FrameMemory::remember_handed(RawFrame* frame, FrameState* state) {
  for (Object& iterator : state->handed) keeper.discard(std::move(iterator));
  state->handed.clear();
  // Held, so that no iterator made later gets the same address: the address is part of the position.
  state->handed_at =
      handed_at(frame, state->info, [&](PyObject* iterator) { state->handed.push_back(Object::share(iterator)); });
}

// True: hidden state of the C code is as it was, so hidden_state() in frames_python.cpp need not refuse the frame.
bool FrameMemory::handed_stand(const FrameState& state, RawFrame* frame) {
  return state.handed_at != 0 && handed_at(frame, state.info, [](PyObject*) {}) == state.handed_at;
}

}  // namespace finitude::bindings
