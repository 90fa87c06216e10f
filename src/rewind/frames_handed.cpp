// C code that calls back for each value of an iterator that it was given, list(map(train, settings)): at which value it
// stands.
#include "rewind/frames_memory.h"

namespace finitude::bindings {
namespace {

// Those among the arguments of the call that a frame waits in. None where a function is among them too: it may be
// called for values that were drawn before (sorted(values, key=...)). False: there are none.
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
  for (int i = callee + 1; any && i < site->depth; ++i) {
    if (stack[i] != nullptr && type_info(Py_TYPE(stack[i])).layout >= 0) visit(stack[i]);
  }
  return any;
}

// Where all of them stand; 0: there are none, or it cannot be told.
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

void FrameMemory::remember_handed(RawFrame* frame, FrameState* state) {
  for (PyObject* iterator : state->handed) keeper.discard(iterator);
  state->handed.clear();
  // Held: none that comes later stands at its address.
  state->handed_at =
      handed_at(frame, state->info, [&](PyObject* iterator) { state->handed.push_back(Py_NewRef(iterator)); });
}

bool FrameMemory::handed_stand(const FrameState& state, RawFrame* frame) {
  return state.handed_at != 0 && handed_at(frame, state.info, [](PyObject*) {}) == state.handed_at;
}

}  // namespace finitude::bindings
