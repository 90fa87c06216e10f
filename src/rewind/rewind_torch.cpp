#include "rewind/rewind_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/immortal.h"
#include "gate/second_run.h"
#include "gate/shared_gradients_torch.h"
#include "observe/first_forward_torch.h"
#include "rewind/frames_python.h"
#include "rewind/loader_methods_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/optimizer_undo_torch.h"
#include "rewind/stack_torch.h"

namespace finitude::bindings {
namespace {

// Where a window began: when an optimizer's step returned.
struct WindowStart {
  OptimizerEntry* entry = nullptr;  // whose step it was
  RngState rng;
  BufferSnapshot buffers;
  // As they were when the last batch was fetched before the step built a graph, where the program had written some of
  // them since.
  std::unique_ptr<BufferSnapshot> at_batch;
  bool has_batch = false;     // at_batch is of this window
  std::uint64_t unbuilt = 0;  // the next autograd node, as long as no graph was built
  StackSnapshot stack;
  std::string stack_problem;   // why `stack` was not taken
  std::size_t batches = 0;     // position in the loader log
  std::uint64_t node = 0;      // the first autograd node after it
  std::uint64_t loss = 0;      // the last loss noted before it
  std::uint64_t serial = 0;    // of the step that ended the window before
  std::uint64_t left_out = 0;  // steps that had not been applied by then
  std::uint64_t windows = 0;   // of any optimizer, that were closed by then
  bool taken = false;
};

// One per optimizer, as another may step before it does again. The last to be taken comes first.
struct Starts {
  std::vector<std::unique_ptr<WindowStart>> list;
  BufferSnapshot buffers;       // what is watched; also the copies as long as there is no start
  bool at_batch = false;        // they are those of when a loader gave a batch, or a first graph was begun
  bool is_coming = false;       // a first step has been seen: nothing more is looked at before it
  std::uint64_t backwards = 0;  // that had begun by then
};

base::Immortal<Starts> the_starts;
Starts& starts() { return *the_starts; }

constexpr std::size_t kMaxStarts = 8;     // where each parameter has an optimizer there are hundreds
constexpr std::size_t kMaxBatches = 128;  // that a start may make the log of batches hold on to
constexpr std::size_t kMaxBatchBytes = 64u << 20;

WindowStart* start_of(const OptimizerEntry* entry) {
  for (const auto& start : starts().list) {
    if (start->entry == entry) return start.get();
  }
  return nullptr;
}

const WindowStart* last_start() {
  const auto& list = starts().list;
  return list.empty() || !list.front()->taken ? nullptr : list.front().get();
}

WindowStart& start_for(OptimizerEntry& entry) {
  auto& list = starts().list;
  auto at = std::find_if(list.begin(), list.end(), [&](const auto& start) { return start->entry == &entry; });
  if (at == list.end() && list.size() < kMaxStarts && !in_backward()) {
    list.push_back(std::make_unique<WindowStart>());
    list.back()->buffers = starts().buffers;
    at = list.end() - 1;
  } else if (at == list.end() && list.empty()) {
    list.push_back(std::make_unique<WindowStart>());
    list.back()->buffers = starts().buffers;
    at = list.begin();
  } else if (at == list.end()) {
    at = list.end() - 1;  // that of the one that has not stepped for the longest
  }
  std::rotate(list.begin(), at, at + 1);
  list.front()->entry = &entry;
  return *list.front();
}

// From where on batches are needed. Starts that hold on to too many of them are given up, to bound memory.
std::size_t oldest_batch() {
  auto& list = starts().list;
  const std::size_t now = loader_log().position();
  std::size_t oldest = list.front()->batches;
  for (std::size_t i = list.size(); i-- > 1;) {
    WindowStart& start = *list[i];
    if (!start.taken) continue;
    if (now - start.batches > kMaxBatches || (start.batches < now && loader_log().size_bytes() > kMaxBatchBytes)) {
      start.taken = false;
      start.stack.clear();
    } else {
      oldest = std::min(oldest, start.batches);
    }
  }
  return oldest;
}

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
  const auto& list = starts().list;
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
        list.empty() ? "nothing is kept any more of when it stepped last" : "no other start of the step is known";
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

// A program without an optimizer: each of its windows begins where an engine call has returned.
OptimizerEntry& nobody() {
  static OptimizerEntry* entry = new OptimizerEntry();
  return *entry;
}

// rewind_by_hand(may_jump) -> None, or why the window that the engine call under way ends cannot be run again by
// returning from it. may_jump: to behind another call than that, where what it returns is of no account.
PyObject* rewind_by_hand(PyObject*, PyObject* may_jump) {
  const WindowStart* start = start_of(&nobody());
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

// put_back(ready): buffers as at the start of the window, or with what the program itself had written into them by the
// time that a loader gave the batch; generators as right after the last batch was fetched. Where no loader was seen and
// the batch did not lie ready the generators stay: going back would draw the same bad batch again.
PyObject* put_back(PyObject*, PyObject* ready) {
  if (last_start() != nullptr) {
    WindowStart& start = *starts().list.front();
    (start.has_batch ? *start.at_batch : start.buffers).restore();
    start.unbuilt = next_node();
  } else {
    starts().buffers.restore();
  }
  if (const RngState* state = loader_log().last_fetch())
    restore_rng(*state);
  else if (PyObject_IsTrue(ready) == 1 && last_start() != nullptr)
    restore_rng(last_start()->rng);
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

BufferSnapshot& buffer_snapshot() {
  return last_start() != nullptr ? starts().list.front()->buffers : starts().buffers;
}

bool buffer_turned_nan() { return buffer_snapshot().turned_nan(); }

namespace {

// No step has shown yet how the window of the first one began: its first batch does. One with a backward before it is a
// further micro-batch of the same step.
void first_batch_given() {
  Starts& s = starts();
  if (s.at_batch && s.backwards != live().backward_serial) return;
  s.buffers.take();
  s.at_batch = true;
  s.backwards = live().backward_serial;
}

}  // namespace

void batch_given() {
  if (second_run_under_way()) return;
  if (last_start() == nullptr) return first_batch_given();
  WindowStart& start = *starts().list.front();
  if (start.unbuilt != next_node()) return;  // what a forward pass writes is not the program's own
  start.has_batch = start.buffers.written_since();
  if (!start.has_batch) return;
  if (start.at_batch == nullptr) start.at_batch = std::make_unique<BufferSnapshot>(start.buffers);
  start.at_batch->take();
}

void watch_buffers(const std::vector<at::Tensor>& buffers) {
  starts().buffers.watch(buffers);
  for (const auto& start : starts().list) {
    start->buffers.watch(buffers);
    if (start->at_batch != nullptr) start->at_batch->watch(buffers);
  }
  if (last_start() != nullptr || starts().at_batch) return;
  starts().buffers.take();
  if (!starts().is_coming) observe::first_forward_begins(starts().buffers);
}

void first_step_is_ahead() {
  if (last_start() == nullptr) starts().at_batch = starts().is_coming = false;
}

void first_step_comes(std::uint64_t node) {
  Starts& s = starts();
  s.is_coming = true;
  auto found = observe::first_forward_over(node);
  if (!found || last_start() != nullptr || s.at_batch) return;
  static_cast<observe::BufferSnapshot&>(s.buffers) = std::move(*found);
  s.at_batch = true;
  s.backwards = live().backward_serial;
}

void forget_window_start() {
  starts().buffers = buffer_snapshot();
  starts().list.clear();
  starts().at_batch = starts().is_coming = false;
  observe::first_forward_over();
  forget_jumps();
}

void forget_window_start_of(const OptimizerEntry& entry) {
  if (last_start() != nullptr && last_start()->entry == &entry) starts().buffers = buffer_snapshot();
  std::erase_if(starts().list, [&](const auto& start) { return start->entry == &entry; });
  forget_jump_of(entry);
}

bool open_window(OpenWindow* window) noexcept {
  const WindowStart* start = last_start();
  if (start != nullptr) *window = {&start->rng, &start->buffers, start->batches, start->loss};
  return start != nullptr;
}

std::size_t batches_before(const OptimizerEntry& entry) noexcept {
  const WindowStart* const own = start_of(&entry);
  const WindowStart* const start = own != nullptr && own->taken ? own : last_start();
  return start != nullptr ? start->batches : 0;
}

void snapshot_window(OptimizerEntry& entry) {
  if (!live().keeps_window_start || second_run_under_way()) return;
  WindowStart& start = start_for(entry);
  take_rng(&start.rng);
  start.buffers.take();
  start.has_batch = false;
  start.unbuilt = next_node();
  start.batches = loader_log().position();
  // Also if the stack is refused: generators and buffers of the start are needed for the veto.
  start.stack_problem = stack_take(&start.stack);
  if (PyErr_Occurred() == nullptr && stream_met()) watch_new_stream(&start.rng);
  start.serial = applied_serial();
  start.left_out = left_out_serial();
  start.windows = live().windows_closed;
  start.node = next_node();
  start.loss = live().next_serial;
  start.taken = true;
  // Last: it drops batches, whose destructors may run code of the program.
  loader_log().begin_window(oldest_batch());
}

void snapshot_window_by_hand() { snapshot_window(nobody()); }
void forget_window_by_hand() { forget_window_start_of(nobody()); }
PyMethodDef* rewind_methods() { return rewind_table; }

}  // namespace finitude::bindings
