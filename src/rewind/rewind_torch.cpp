#include "rewind/rewind_torch.h"

#include <string>
#include <utility>
#include <vector>

#include "gate/second_run.h"
#include "gate/shared_gradients_torch.h"
#include "rewind/frames_python.h"
#include "rewind/loader_methods_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/optimizer_undo_torch.h"
#include "rewind/stack_torch.h"
#include "rewind/window_start_torch.h"

namespace finitude::bindings {
namespace {

struct BeforeSecondRun {
  RngState rng;
  BufferSnapshot buffers;
};

BeforeSecondRun& before_second_run() {
  static BeforeSecondRun* before = new BeforeSecondRun();
  return *before;
}

// The way that rewind_way found.
struct Chosen {
  const WindowStart* start = nullptr;
  const OptimizerEntry* entry = nullptr;  // whose window it is
};

Chosen& chosen() {
  static Chosen way;
  return way;
}

Counters counters_before;  // what the second run does is not counted twice

PyObject* text_or_none(const std::string& text) {
  if (text.empty()) Py_RETURN_NONE;
  return PyUnicode_FromString(text.c_str());
}

// The start that the next second run goes back to, and why not to the others. Borrowed: the list owns it.
struct Way {
  const WindowStart* start = nullptr;
  bool jumps = false;  // over another optimizer's step, or to behind another call than the present one
  std::string why_not;
};

std::string obstacle(const WindowStart& start, bool own, bool* jumps) {
  if (!start.taken) return "nothing is kept any more of when it stepped last";
  if (!start.stack_problem.empty()) return start.stack_problem;
  const RewindVerdict verdict = const_cast<StackSnapshot&>(start.stack).can_restore();
  if (!verdict) return verdict.reason;
  if (std::string why = undo_obstacle(start.serial); !why.empty()) return why;
  *jumps = verdict.jumps || !own || !stepped_since(start.serial).empty();
  if (*jumps && graph_reaches_back(start.loss, start.node, !own)) return "a loss was computed from what lies before it";
  return {};
}

// Nearest start first: after it there is no step to undo. Then the optimizer's own last one, as many `tries` later.
Way find_way(PyObject* optimizer, long tries) {
  Way way;
  const OptimizerEntry* entry = find_entry(optimizer);
  if (in_backward()) {
    way.why_not = "the step is taken inside backward";
    return way;
  }
  if (live().threads_take_turns) {
    way.why_not = "another thread of this process trains as well";  // and would be undone, or meet what is put back
    return way;
  }
  const WindowStart* own = entry != nullptr ? start_of(entry) : nullptr;
  const WindowStart* nearest = last_start();
  for (const WindowStart* start : {nearest, own}) {
    if (start == nullptr || (start == own && way.start == own)) continue;
    if (start == own && own == nearest && !way.why_not.empty()) continue;
    bool jumps = false;
    const std::string why = obstacle(*start, start == own, &jumps);
    if (why.empty() && tries-- == 0) {
      way.start = start;
      way.jumps = jumps;
      return way;
    }
    if (!why.empty()) {
      if (!way.why_not.empty()) way.why_not += "; ";
      if (start != own) way.why_not += "from where " + start->entry->class_name + " stepped: ";
      way.why_not += why;
    }
    if (own == nearest) break;
  }
  if (own == nullptr && (entry == nullptr || entry->step == 0)) {
    way.why_not = "this is the first step: there is no earlier step to return to";
  } else if (way.why_not.empty()) {
    way.why_not =
        !any_start() ? "nothing is kept any more of when it stepped last" : "no other start of the step is known";
  }
  return way;
}

// The optimizers themselves.
Object as_list(const std::vector<OptimizerEntry*>& entries, const OptimizerEntry* but = nullptr) {
  Object list = Object::take(PyList_New(0));
  for (const OptimizerEntry* entry : entries) {
    if (list && entry != but && PyList_Append(list.get(), entry->self) != 0) list = Object();
  }
  return list;
}

// rewind_way(optimizer, tries) -> (None, or why the window cannot be run again by returning from this call; is it a
// jump; the other optimizers whose steps are undone and taken again; those whose steps were not applied since and will
// not be again). `tries`: how many ways were tried before.
PyObject* rewind_way(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2) {
    PyErr_SetString(PyExc_TypeError, "rewind_way(optimizer, tries)");
    return nullptr;
  }
  const Way way = find_way(args[0], PyLong_AsLong(args[1]));
  chosen() = {way.start, find_entry(args[0])};
  const std::uint64_t steps = way.start != nullptr ? way.start->serial : UINT64_MAX;
  const std::uint64_t left_out = way.start != nullptr ? way.start->left_out : UINT64_MAX;
  const Object over = as_list(stepped_since(steps));
  const Object again = as_list(left_out_since(left_out), chosen().entry);
  if (!over || !again) return nullptr;
  return Py_BuildValue("(NOOO)", text_or_none(way.start != nullptr ? std::string() : way.why_not),
                       way.jumps ? Py_True : Py_False, over.get(), again.get());
}

// rewind_by_hand(may_jump) -> None, or why the window that the engine call under way ends cannot be run again by
// returning from it. may_jump: to behind another call than that, where what it returns is of no account.
PyObject* rewind_by_hand(PyObject*, PyObject* may_jump) {
  const WindowStart* start = start_by_hand();
  bool jumps = false;
  std::string why = in_backward()               ? "it is called inside backward"
                    : live().threads_take_turns ? "another thread of this process trains as well"
                    : start == nullptr          ? "there is no earlier call of backward or autograd.grad to return to"
                                                : obstacle(*start, true, &jumps);
  if (why.empty() && jumps && PyObject_IsTrue(may_jump) != 1) why = "gradients were last asked for elsewhere";
  chosen() = {why.empty() ? start : nullptr, nullptr};
  return text_or_none(why);
}

// rewind_since() -> how many windows were closed where the way that rewind_way found begins; 0 without one.
PyObject* rewind_since(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(chosen().start != nullptr ? chosen().start->windows : 0);
}

// rewind_begin() -> None, or the reason why it failed. Goes the way that rewind_way found: puts names, iterators,
// generators, buffers and what others stepped back.
PyObject* rewind_begin(PyObject*, PyObject*) {
  const auto [start, entry] = std::exchange(chosen(), {});
  if (start == nullptr) return PyUnicode_FromString("there is no earlier step to return to");
  BeforeSecondRun& before = before_second_run();
  // First all that rewind_undo() needs, then the changes.
  stack_take_now();
  take_rng(&before.rng);
  before.buffers = start->buffers;
  before.buffers.take();
  const bool undone = begin_jump(start->serial);
  const std::string why = !undone ? "the steps of other optimizers could not be undone"
                                  : stack_restore(const_cast<StackSnapshot*>(&start->stack));
  if (!why.empty()) {
    if (undone) end_jump();
    stack_forget_now();
    return PyUnicode_FromString(why.c_str());
  }
  restore_rng(start->rng);
  const_cast<BufferSnapshot&>(start->buffers).restore();
  loader_log().begin_replay(start->batches);
  counters_before = live().counters;
  set_windows_aside(entry);
  set_second_run(true);
  Py_RETURN_NONE;
}

// rewind_end(is_back) -> None if the second run used the same batches, else what was different. is_back: it came to the
// step that it was to come to.
PyObject* rewind_end(PyObject*, PyObject* is_back) {
  const char* why = nullptr;
  if (second_run_under_way()) {
    live().counters = counters_before;
    put_windows_back(PyObject_IsTrue(is_back) == 1);
  }
  set_second_run(false);
  loader_log().end_replay(&why);
  if (!end_jump() && why == nullptr) why = "the step of another optimizer came out with other values";
  if (why == nullptr) Py_RETURN_NONE;
  return PyUnicode_FromString(why);
}

// rewind_undo() -> True: names, iterators, generators and buffers are those of before rewind_begin. For a second run
// that went another way than the first: the script has to continue from the first.
PyObject* rewind_undo(PyObject*, PyObject*) {
  BeforeSecondRun& before = before_second_run();
  restore_rng(before.rng);
  before.buffers.restore();
  return PyBool_FromLong(stack_put_back_now());
}

// rewind_undo_obstacle() -> None, or why rewind_undo could not put the names back from here.
PyObject* rewind_undo_obstacle(PyObject*, PyObject*) { return text_or_none(stack_check_now()); }

// rewind_forget(): the script continues from the second run, or not at all. Drops what rewind_undo() would need.
PyObject* rewind_forget(PyObject*, PyObject*) {
  stack_forget_now();
  Py_RETURN_NONE;
}

bool has_moved_since(const RngState& then) {
  RngState now;
  take_rng(&now);
  return !same(now, then) || now.streams != then.streams;
}

// put_back(is_ready): buffers as at the start of the window, or with what the program itself had written into them by
// the time that a loader gave the batch; generators as right after the last batch was fetched. Where no loader was seen
// and the batch did not lie ready the generators stay: going back would draw the same bad batch again. is_ready is a
// function that looks for that, and is called only where a generator has moved.
PyObject* put_back(PyObject*, PyObject* is_ready) {
  put_buffers_back();
  if (const RngState* state = loader_log().last_fetch()) {
    restore_rng(*state);
  } else if (last_start() != nullptr && has_moved_since(last_start()->rng)) {
    const Object ready = Object::take(PyObject_CallNoArgs(is_ready));
    if (!ready) return nullptr;
    if (PyObject_IsTrue(ready.get()) == 1 && last_start() != nullptr) restore_rng(last_start()->rng);
  }
  Py_RETURN_NONE;
}

PyMethodDef rewind_table[] = {
    {"rewind_way", reinterpret_cast<PyCFunction>(rewind_way), METH_FASTCALL, nullptr},
    {"rewind_by_hand", rewind_by_hand, METH_O, nullptr},
    {"rewind_since", rewind_since, METH_NOARGS, nullptr},
    {"rewind_begin", rewind_begin, METH_NOARGS, nullptr},
    {"rewind_end", rewind_end, METH_O, nullptr},
    {"rewind_undo_obstacle", rewind_undo_obstacle, METH_NOARGS, nullptr},
    {"rewind_undo", rewind_undo, METH_NOARGS, nullptr},
    {"rewind_forget", rewind_forget, METH_NOARGS, nullptr},
    {"put_back", put_back, METH_O, nullptr},
    {"loader_methods", reinterpret_cast<PyCFunction>(loader_methods), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* rewind_methods() { return rewind_table; }

}  // namespace finitude::bindings
