// Whole stacks: taking, comparing and restoring a snapshot.
#include "rewind/frames_python.h"

#include <cstring>
#include <exception>

#include "pyhost/object_python.h"
#include "pyhost/python_compat.h"
#include "pyhost/saved_error_python.h"
#include "pyhost/user_stack.h"
#include "rewind/frames_memory.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMaxFrames = 900;

// While one lives, nothing may run the user's code, which could change the frames that are being read. Hence no garbage
// collection, as it runs finalizers, and no reference is dropped (see Keeper::discard). An exception that was set is
// put aside, as the C API may not be called with one. Errors made meanwhile are of no interest.
class Quiet {
  class NoCollection {
   public:
    NoCollection() : collecting_(PyGC_Disable() != 0) {}
    ~NoCollection() {
      if (collecting_) PyGC_Enable();
    }
    NoCollection(const NoCollection&) = delete;
    NoCollection& operator=(const NoCollection&) = delete;

   private:
    bool collecting_;
  };
  NoCollection no_collection_;
  SavedError saved_;
};

// Positions are compared by the instruction that they belong to. Within one call the interpreter may report the
// instruction or one of its caches.
int site_start(CodeInfo* info, int unit) {
  const CodeInfo::Site* site = site_at(info, unit);
  return site == nullptr || site->start < 0 ? unit : site->start;
}

// Does this callable call Python code at most once before it returns? Otherwise it has a loop in C, whose position
// cannot be read or set back: after a rewind, map(), sorted() or a C extension would continue with its next value, and
// not with the value of the first run. Unknown callables count as loops.
bool calls_once(PyObject* callee) {
  if (callee == nullptr) return false;
  // Bound methods and functools.partial put their first argument into the callable's place meanwhile.
  if (PyCallable_Check(callee) == 0) return true;
  if (PyMethod_Check(callee)) callee = PyMethod_GET_FUNCTION(callee);
  if (PyFunction_Check(callee)) return true;
  if (PyCFunction_Check(callee)) {
    const char* name = reinterpret_cast<PyCFunctionObject*>(callee)->m_ml->ml_name;
    for (const char* once : {"exec", "eval", "__import__", "__build_class__", "send", "run"}) {
      if (name != nullptr && std::strcmp(name, once) == 0) return true;
    }
    return false;
  }
  const auto python_method = [](PyTypeObject* type, const char* name) {
    // Looked up on the class, as the interpreter does for special methods; a method in C gives a wrapper of another
    // type.
    const Object method = Object::take(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name));
    const bool is = method && (PyFunction_Check(method.get()) || PyMethod_Check(method.get()));
    PyErr_Clear();
    return is;
  };
  if (PyType_Check(callee)) {
    auto* type = reinterpret_cast<PyTypeObject*>(callee);
    // A class is called through its metaclass: one call of Python code at a time, each of which returns before the
    // next.
    return python_method(type, "__init__") || python_method(type, "__new__") ||
           python_method(Py_TYPE(callee), "__call__");
  }
  // functools.partial and lru_cache hand on a single call, as does any class with a __call__ in Python.
  const char* name = Py_TYPE(callee)->tp_name;
  return std::strcmp(name, "functools.partial") == 0 || std::strcmp(name, "functools._lru_cache_wrapper") == 0 ||
         std::strcmp(name, "method-wrapper") == 0 || python_method(Py_TYPE(callee), "__call__");
}

// Is C code that keeps values of its own between this frame and the next one in?
// `inner` is the frame that this one waits for. The reason names the builtin and the line, for the report.
bool hidden_state(RawFrame* frame, CodeInfo* info, RawFrame* inner, std::string* why) {
  if (frame_stack_depth(frame) >= 0) return false;  // one Python function called another
  const CodeInfo::Site* site = site_at(info, frame_site(frame));
  if (site == nullptr || (site->callable < 0 && !site->draws)) return false;
  PyObject** stack = frame_stack(frame);
  PyObject* culprit = nullptr;
  if (site->draws) {
    // FOR_ITER runs the next of the iterator on top of the stack: a generator keeps its state in its frame, which is
    // remembered, while zip and filter hold values in C meanwhile.
    culprit = stack[site->depth - 1];
    if (culprit != nullptr && FrameMemory::hides_nothing(culprit)) return false;
  } else {
    culprit = stack[site->callable];
    if (culprit == nullptr && site->callable_or_next) culprit = stack[site->callable + 1];
    if (calls_once(culprit)) return false;
    // A builtin that draws from the generator which runs the step: all that matters is in the generator.
    for (int i = site->survivors; frame_is_generator(inner) && i < site->depth; ++i) {
      if (stack[i] != nullptr && is_generator(stack[i]) && generator_state(stack[i]) == GeneratorState::kRunning)
        return false;
    }
  }
  const Object name = culprit == nullptr ? Object() : Object::take(PyObject_Repr(culprit));
  const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
  *why = "the step runs inside " + std::string(text == nullptr ? "a builtin" : text) + " (" +
         place(*info, frame_site(frame)) + "), whose own position cannot be set back";
  PyErr_Clear();
  return true;
}

}  // namespace

struct StackSnapshot::Impl {
  FrameMemory memory;
  // What is known of the frames of the stack by their code, innermost first. The same calls are there in every step, so
  // a step mostly compares one address and one position per frame.
  struct Seat {
    PyCodeObject* code = nullptr;
    CodeInfo* info = nullptr;
    int unit = -1;
    bool library = false, in_loop = false;
    bool hands = false;  // C code that it waits for was given an iterator when it came to that unit
  };
  std::vector<Seat> seats;
  std::vector<std::unique_ptr<FrameState>> frames;  // innermost user frame first; `used` of them count
  std::size_t used = 0;
  PyThreadState* thread = nullptr;
  bool valid = false;
  std::string reason = "no snapshot was taken";
  std::vector<std::string> unset;
  std::vector<PyCodeObject*> unset_in;  // of each, the function whose own it is; null: of a module or a class body

  bool remember_all();
  void drop_from(std::size_t first);
  bool compare(std::string* why, std::vector<RawFrame*>* live, bool* jumps);
};

// Walks from the innermost user frame outward, library frames included: between two user frames they must be the same
// when the snapshot is restored. Library frames further in than that are those of the optimizer and of our hook, and
// return on their own. States are reused from step to step; what has not changed costs a comparison.
bool StackSnapshot::Impl::remember_all() {
  used = 0;
  bool good = true;
  std::size_t depth = 0;
  for (RawFrame* frame = current_frame(); good && frame != nullptr; frame = outer_frame(frame), ++depth) {
    if (depth == seats.size()) seats.emplace_back();
    Seat& seat = seats[depth];
    if (seat.code != frame_code(frame)) {
      CodeInfo* info = code_info(frame_code(frame));
      seat = {frame_code(frame), info, -1, info->library, false, false};
    }
    if (used == 0 && seat.library) continue;
    if (used == kMaxFrames) {
      reason = "the stack is too deep";
      return false;
    }
    if (used == frames.size()) frames.push_back(std::make_unique<FrameState>());
    const int unit = frame_site(frame);
    FrameState& state = *frames[used++];
    if (seat.unit != unit) seat.hands = used > 1 && FrameMemory::hands_iterators(frame, seat.info);
    // A library frame outside a loop has no state of interest: same code, same instruction, nothing to read.
    if (seat.library && state.info == seat.info && state.unit == unit && seat.unit == unit && !seat.in_loop &&
        !seat.hands)
      continue;
    // The state held the values of another function. They go to the keeper, and are dropped when the stack is complete.
    if (state.info != seat.info || seat.library) memory.forget(&state);
    state.info = seat.info;
    state.unit = seat.unit = unit;
    state.user = !seat.library;
    if (state.user)
      state.waits_in_python = frame_stack_depth(frame) >= 0, state.return_offset = frame_return_offset(frame);
    state.fingerprint = 0;
    if (seat.hands || state.handed_at != 0) memory.remember_handed(frame, &state);
    if (state.user) {
      good = memory.remember(frame, &state, &reason);
      continue;
    }
    // A library's loop (a Trainer's) may have moved on although its frame waits at the same instruction. Its names are
    // not restored, so it has to be where it was: a hash of its slots shows whether it is.
    const CodeInfo::Site* site = site_at(seat.info, unit);
    seat.in_loop = site == nullptr || site->in_loop;
    if (seat.in_loop) state.fingerprint = fingerprint(frame, seat.info);
  }
  if (good && used == 0) {
    reason = "no user code is on the stack";
    good = false;
  }
  return good;
}

void StackSnapshot::Impl::drop_from(std::size_t first) {
  for (std::size_t i = first; i < frames.size(); ++i) {
    memory.forget(frames[i].get());
    frames[i]->info = nullptr;
  }
  used = first < used ? first : used;
}

// Would restore() reproduce the snapshot from here? Nothing is changed. All of it has to hold before the first value is
// put back: a stack that was put back in part could not continue in either way. `live` gets the frames, which are valid
// while the caller runs no Python code.
bool StackSnapshot::Impl::compare(std::string* why, std::vector<RawFrame*>* live, bool* jumps) {
  if (!valid) {
    *why = reason;
    return false;
  }
  if (thread != PyThreadState_Get()) {
    *why = "the step ran in another thread";
    return false;
  }
  walk_stack([&](RawFrame* frame, CodeInfo* info) {
    if (live->empty() && info->library) return true;
    live->push_back(frame);
    return live->size() <= used;
  });
  if (live->size() != used) {
    *why = "the stack is of another depth";
    return false;
  }
  for (std::size_t i = 0; i < used; ++i) {
    const FrameState& state = *frames[i];
    RawFrame* frame = (*live)[i];
    if (frame_code(frame) != state.info->code) {
      CodeInfo* now = code_info(frame_code(frame));
      *why = "called from " + now->function + " (" + place(*now, frame_site(frame)) + ") instead of " +
             state.info->function + " (" + place(*state.info, state.unit) + ")";
      return false;
    }
    const int unit = frame_site(frame);
    const bool moved = unit != state.unit && site_start(state.info, unit) != site_start(state.info, state.unit);
    // To continue at another call, the frame must wait in a call of Python code by Python code now and in the snapshot.
    // A call from C code returns into that C code, which then continues at the place where it was called.
    const bool can_move = kFramesCanJump && state.user && state.waits_in_python && frame_stack_depth(frame) >= 0;
    if (moved && !can_move) {
      *why = "called from " + place(*state.info, unit) + " instead of " + place(*state.info, state.unit);
      return false;
    }
    if (moved) *jumps = true;
    // Not for frame 0, which has no user frame further in: it waits in the call that ends in our hook.
    if (i > 0 && !FrameMemory::handed_stand(state, frame) && hidden_state(frame, state.info, (*live)[i - 1], why))
      return false;
    if (state.fingerprint != 0 && fingerprint(frame, state.info) != state.fingerprint) {
      *why = "a loop outside the user's code has moved on (" + place(*state.info, unit) + ")";
      return false;
    }
    if (state.user && !memory.fits(state, frame, why)) return false;
  }
  // Last, as they concern no frame: generators in names that could not be remembered.
  return memory.doubts_hold(why);
}

StackSnapshot::StackSnapshot() : impl_(std::make_unique<Impl>()) {}

StackSnapshot::~StackSnapshot() {
  if (Py_IsInitialized() != 0) {
    clear();
    return;
  }
  (void)impl_.release();  // the interpreter has gone, and its objects with it
}

void StackSnapshot::take(const SnapshotOptions& options) noexcept {
  Impl& impl = *impl_;
  try {
    {
      Quiet quiet;
      impl.valid = false;
      impl.thread = PyThreadState_Get();
      impl.memory.keeper.keep_strong = options.keep_strong;
      impl.memory.keeper.make_stand_in = options.make_stand_in;
      impl.memory.keeper.context = options.context;
      impl.memory.keeper.keep_all = options.keep_all;
      // The old values stay alive until finish(): most of them are taken over by the new snapshot. finish() comes after
      // Quiet has ended, because it drops references and thereby may run the program's code; errors of that code are
      // discarded.
      impl.memory.begin();
      impl.valid = impl.remember_all();
      // A snapshot that cannot be used holds no references: it would prolong the life of values for nothing.
      impl.drop_from(impl.valid ? impl.used : 0);
      if (!impl.valid && impl.reason.empty()) impl.reason = "an iterator is of an unknown form";
      if (!impl.valid) impl.memory.begin();
    }
    const SavedError saved;
    impl.memory.finish();
  } catch (const std::exception& error) {
    impl.valid = false;
    impl.reason = "out of memory";
  }
}

void StackSnapshot::clear() noexcept {
  Impl& impl = *impl_;
  const SavedError saved;
  impl.valid = false;
  impl.reason = "no snapshot was taken";
  try {
    impl.drop_from(0);
    impl.memory.forget_all();
  } catch (const std::exception&) {
  }
}

RewindVerdict StackSnapshot::can_restore() noexcept {
  RewindVerdict verdict;
  try {
    Quiet quiet;
    std::vector<RawFrame*> live;
    verdict.possible = impl_->compare(&verdict.reason, &live, &verdict.jumps);
  } catch (const std::exception&) {
    verdict.possible = false;
  }
  // Callers take an empty reason for no obstacle. Fields of iterators whose layout is another one have none.
  if (!verdict.possible && verdict.reason.empty()) verdict.reason = "an iterator is not what it was";
  return verdict;
}

bool StackSnapshot::restore(std::string* why) noexcept {
  Impl& impl = *impl_;
  try {
    {
      Quiet quiet;
      std::vector<RawFrame*> live;
      bool jumps = false;
      // Compared again, since the program may have run between can_restore() and this call.
      if (!impl.compare(why, &live, &jumps)) return false;
      impl.unset.clear();
      impl.unset_in.clear();
      // From here on frames are written. A value that is gone becomes an unset name and not a failure. The position is
      // set after the values of its frame, which belong to it.
      for (std::size_t i = 0; i < impl.used; ++i) {
        FrameState& state = *impl.frames[i];
        if (state.user) impl.memory.put(state, live[i], &impl.unset);
        impl.unset_in.resize(impl.unset.size(), state.info->optimized ? state.info->code : nullptr);
        if (jumps && state.user && site_start(state.info, frame_site(live[i])) != site_start(state.info, state.unit)) {
          set_frame_site(live[i], state.unit, state.return_offset);
        }
      }
    }
    const SavedError saved;
    // The frames are complete. Now the values that were replaced may be dropped, which can run finalizers of the
    // program.
    impl.memory.keeper.flush();
    return true;
  } catch (const std::exception&) {
    *why = "out of memory";
    return false;
  }
}

const std::vector<std::string>& StackSnapshot::unset_names() const { return impl_->unset; }

const std::vector<PyCodeObject*>& StackSnapshot::unset_in() const { return impl_->unset_in; }

void set_frame_rules(const FrameRules& rules) noexcept {
  try {
    set_code_rules({rules.library_prefixes, rules.module_calls});
    set_types({rules.tensor_type, rules.external_iterators, {}});
    set_optimizer_type(rules.optimizer_type);
  } catch (const std::exception&) {
  }
}

void running_iterators(std::vector<PyObject*>* out) noexcept {
  try {
    out->clear();
    walk_stack([&](RawFrame* frame, CodeInfo* info) {
      // -1 where the bytecode is not understood: the loop below then reads nothing.
      const int depth = info->library ? 0 : surviving_depth(frame, info);
      for (int i = 0; i < depth; ++i) {
        PyObject* object = frame_stack(frame)[i];
        if (object != nullptr && type_info(Py_TYPE(object)).iterates) out->push_back(object);
      }
      return true;
    });
  } catch (const std::exception&) {
    out->clear();
  }
}

}  // namespace finitude::bindings
