#include "gate/script_nan_checks_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/immortal.h"
#include "gate/check_methods_torch.h"
#include "gate/checked_row_torch.h"
#include "gate/state_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

constexpr std::int64_t kMostElements = 4096;  // of a loss that is no scalar
// Looks at values that are not finite, in a run: a program may log one in each step, and each costs a walk of its
// graph.
constexpr std::uint32_t kMostLooks = 4096;
constexpr std::size_t kMostKept = 16;

// Autograd numbers its nodes in the order in which they are made, per thread. Two graphs that were made one after the
// other have ranges that do not overlap.
struct Range {
  std::uint64_t first, last;
  bool overlaps(const Range& other) const { return first <= other.last && other.first <= last; }
};

// A bad value of which the script has made a copy without a graph. To look at the copy is to look at the value.
struct Detached {
  const void* data = nullptr;
  CheckedLoss of;
};

// The atomics are read each time the script looks at a value and spare the mutex: in a healthy run it is never taken.
struct Checks {
  std::atomic<bool> on = false;
  std::atomic<std::uint32_t> looks = 0;
  std::atomic<std::size_t> waiting = 0;  // size of `checked`
  std::atomic<std::size_t> copied = 0;   // size of `copies`
  std::mutex mutex;                      // guards the three below
  std::vector<CheckedLoss> checked;
  std::vector<Detached> copies;
  std::vector<Range> given;               // graphs of the last bad roots
  std::vector<CheckedLoss> dropped;       // with the GIL held
  std::uint64_t more = 0, last_more = 0;  // bad values past those in `checked`; the end of the last one's graph
  // Weak references to the modules whose parameters an optimizer steps, by its ordinal, where some of them trained as
  // it stepped for the first time. With the GIL held.
  std::unordered_map<std::uint32_t, std::vector<Object>> modules;
};

base::Immortal<Checks> the_checks;
Checks& checks() { return *the_checks; }

// Calls visit(node, is it a leaf's) for each node below the root until it returns false.
template <typename Visit>
void walk(const at::Tensor& root, Visit&& visit) {
  constexpr std::size_t kMaxNodes = 1'000'000;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> todo;
  const auto top = root.grad_fn();
  if (top) todo.push_back(top.get());
  while (!todo.empty() && seen.size() < kMaxNodes) {
    const auto* node = todo.back();
    todo.pop_back();
    if (!seen.insert(node).second) continue;
    if (!visit(*node, dynamic_cast<const torch::autograd::AccumulateGrad*>(node))) return;
    for (const auto& edge : node->next_edges()) {
      if (edge.function) todo.push_back(edge.function.get());
    }
  }
}

// The numbers of all nodes below `root`, leaves excluded: their nodes are as old as the model. Empty (first > last) of
// a tensor without a graph.
Range range_of(const at::Tensor& root, std::vector<const c10::TensorImpl*>* leaves) {
  Range range{UINT64_MAX, 0};
  walk(root, [&](const torch::autograd::Node& node, const torch::autograd::AccumulateGrad* leaf) {
    if (leaf != nullptr) {
      if (leaves != nullptr) leaves->push_back(leaf->variable.unsafeGetTensorImpl());
    } else {
      range.first = std::min(range.first, node.sequence_nr());
      range.last = std::max(range.last, node.sequence_nr());
    }
    return true;
  });
  return range;
}

// An optimizer that steps one of its leaves; also one that the program has let go of since, as a function that trained
// may have returned. Null: none.
const OptimizerEntry* owner_of(const CheckedLoss& loss) {
  const auto& owner = live().owner;
  for (const c10::TensorImpl* leaf : loss.leaves) {
    if (const auto found = owner.find(leaf); found != owner.end()) return found->second.first;
  }
  return nullptr;
}

// The optimizer may step on before the value is reported, with gradients that another backward left, or with none.
void set_step(CheckedLoss* found) {
  const OptimizerEntry* entry = owner_of(*found);
  found->step = entry != nullptr ? entry->step : 0;
}

// Rare. False for a value that is no loss: without leaves below it. Keeps pointers to leaves for comparison only, and
// the value itself only while a trace needs it as a sink: its graph would hold the activations of a step.
bool describe(const at::Tensor& value, const observe::TensorView& v, CheckedLoss* found) {
  const Range range = range_of(value, &found->leaves);
  if (found->leaves.empty() || range.first > range.last) return false;
  found->first_node = range.first;
  found->last_node = range.last;
  set_step(found);
  found->is_scalar = v.numel == 1;
  found->sum = observe::checksum(v);
  const sense::Health h = observe::full(v);
  found->value = h.nan ? NAN : h.pos_inf ? INFINITY : -INFINITY;
  if (observe::Tracer::get().on()) found->held = value;
  return true;
}

// Module.training, read from the instance's dict, since getattr may run code of the program. False also if there is
// none.
bool is_training(PyObject* module) noexcept {
  const Object attributes = Object::take(PyObject_GenericGetDict(module, nullptr));
  const bool is =
      attributes && PyDict_Check(attributes.get()) && PyDict_GetItemString(attributes.get(), "training") == Py_True;
  PyErr_Clear();
  return is;
}

// A loss that is computed while its model evaluates, Module.eval(), is no step of the training that was dropped: an
// evaluation without torch.no_grad.
bool is_evaluated(const CheckedLoss& loss) {
  const OptimizerEntry* entry = owner_of(loss);
  const auto found = entry != nullptr ? checks().modules.find(entry->ordinal) : checks().modules.end();
  if (found == checks().modules.end()) return false;
  bool any = false;
  for (const Object& weak : found->second) {
    PyObject* module = PyWeakref_GetObject(weak.get());
    if (module == Py_None) continue;
    any = true;
    if (is_training(module)) return false;
  }
  return any;
}

// Under the mutex. A value whose graph overlaps one that backward was given, or one that is noted, is the same event.
void enter(CheckedLoss found) {
  Checks& c = checks();
  const Range range{found.first_node, found.last_node};
  if (std::any_of(c.given.begin(), c.given.end(), [&](const Range& r) { return r.overlaps(range); })) return;
  for (CheckedLoss& other : c.checked) {  // looked at twice, or a part of it was
    if (!range.overlaps({other.first_node, other.last_node})) continue;
    other.is_asked = other.is_asked || found.is_asked;
    return;
  }
  const bool is_new = c.checked.size() < kMostKept || found.first_node > c.last_more;
  if (is_new && !found.is_asked && found.is_scalar && owner_of(found) != nullptr) note_bad_look();
  if (c.checked.size() >= kMostKept) {
    c.more += found.first_node > c.last_more;
    c.last_more = std::max(c.last_more, found.last_node);
    return;
  }
  c.checked.push_back(std::move(found));
  c.waiting.store(c.checked.size());
}

// A value that is not finite was looked at: part of a graph, or a copy of such a one. Whatever fails here is dropped:
// the call under way is the program's.
void note_checked(const at::Tensor& value) noexcept {
  Checks& c = checks();
  const bool is_copy = !value.requires_grad();
  if (is_copy && c.copied.load(std::memory_order_relaxed) == 0) return;
  if (!c.on.load(std::memory_order_relaxed) || !live().on || c.looks.fetch_add(1) >= kMostLooks) return;
  try {
    observe::TensorView v;
    if (!observe::view_of(*value.unsafeGetTensorImpl(), &v)) return;
    CheckedLoss found;
    if (!is_copy && (!describe(value, v, &found) || is_evaluated(found))) return;
    const std::lock_guard lock(c.mutex);
    if (!is_copy) return enter(std::move(found));
    const std::uint64_t sum = observe::checksum(v);
    for (const Detached& copy : c.copies) {
      if (copy.data == v.data && copy.of.sum == sum) return enter(copy.of);
    }
  } catch (...) {
  }
}

// Rare: a copy without a graph is made of a value that is not finite.
void note_copied(const at::Tensor& value) noexcept {
  Checks& c = checks();
  if (!c.on.load(std::memory_order_relaxed) || !live().on || c.copied.load(std::memory_order_relaxed) >= kMostKept)
    return;
  try {
    observe::TensorView v;
    Detached copy;
    if (!observe::view_of(*value.unsafeGetTensorImpl(), &v) || !describe(value, v, &copy.of) || is_evaluated(copy.of))
      return;
    copy.data = v.data;
    const std::lock_guard lock(c.mutex);
    c.copies.push_back(std::move(copy));
    c.copied.store(c.copies.size());
  } catch (...) {
  }
}

// May be a loss, or a copy of one. A leaf is a parameter or an input: no step was computed for it yet.
inline bool is_looked_at(const at::Tensor& value) {
  return value.requires_grad() ? !value.is_leaf() : checks().copied.load(std::memory_order_relaxed) != 0;
}

inline bool is_of_a_loss(const at::Tensor& value) {
  return value.requires_grad() && !value.is_leaf() && value.numel() == 1;
}

bool is_bad(const at::Tensor& value, std::int64_t most_elements) noexcept {
  observe::TensorView v;
  return observe::view_of(*value.unsafeGetTensorImpl(), &v) && v.numel <= most_elements && observe::quick(v).bad;
}

std::vector<at::Tensor> tensors_of(PyObject* roots) {
  std::vector<at::Tensor> found;
  const bool several = PyTuple_Check(roots);
  for (Py_ssize_t i = 0; i < (several ? PyTuple_GET_SIZE(roots) : 1); ++i) {
    PyObject* root = several ? PyTuple_GET_ITEM(roots, i) : roots;
    if (is_tensor_object(root)) found.push_back(THPVariable_Unpack(root));
  }
  return found;
}

// A new list of dicts, or null with an error set.
PyObject* as_list(const std::vector<CheckedLoss>& losses) {
  Object list = Object::take(PyList_New(0));
  for (const CheckedLoss& loss : losses) {
    const OptimizerEntry* entry = owner_of(loss);
    if (entry == nullptr || !list) continue;
    const Object one = Object::take(Py_BuildValue(
        "{s:d,s:K,s:s,s:I,s:K,s:O,s:L}", "value", loss.value, "sum", static_cast<unsigned long long>(loss.sum),
        "optimizer", entry->class_name.c_str(), "ordinal", static_cast<unsigned>(entry->ordinal), "step",
        static_cast<unsigned long long>(loss.step), "asked", loss.is_asked ? Py_True : Py_False, "parameter",
        static_cast<long long>(loss.parameter)));
    if (!one || PyList_Append(list.get(), one.get()) != 0) list = Object();
  }
  return list.release();
}

// dropped_checks() -> the values that were looked at and then dropped, once.
PyObject* dropped_checks(PyObject*, PyObject*) { return as_list(std::exchange(checks().dropped, {})); }

// A copy, since what is done with it may run Python, which must not run under the mutex.
std::vector<CheckedLoss> waiting() {
  Checks& c = checks();
  const std::lock_guard lock(c.mutex);
  return c.checked;
}

// more_checks() -> how many values there were past those that are listed, once.
PyObject* more_checks(PyObject*, PyObject*) {
  Checks& c = checks();
  const std::lock_guard lock(c.mutex);
  return PyLong_FromUnsignedLongLong(std::exchange(c.more, 0));
}

// waiting_checks() -> those after which no backward has come yet.
PyObject* waiting_checks(PyObject*, PyObject*) { return as_list(waiting()); }

void add_sink(const CheckedLoss& loss, bool is_dropped) {
  observe::Tracer& tracer = observe::Tracer::get();
  if (!tracer.on() || !loss.held.defined()) return;
  const bool is_gradient = loss.parameter >= 0;
  const char* const kind = is_gradient ? "gradient" : "loss";
  tracer.add_sink(is_dropped ? std::string(kDroppedByScript) + kind : kind,
                  is_gradient ? std::to_string(loss.parameter) : "loss", *loss.held.unsafeGetTensorImpl(), 0);
}

// sink_waiting_checks(): none comes any more, so they are what the trace that is being taken is to explain.
PyObject* sink_waiting_checks(PyObject*, PyObject*) {
  for (const CheckedLoss& loss : waiting()) add_sink(loss, false);
  Py_RETURN_NONE;
}

// note_modules(optimizer, [module]): those that hold its parameters, as it steps for the first time.
PyObject* note_modules(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  const OptimizerEntry* entry = nargs == 2 && PyList_Check(args[1]) ? find_entry(args[0]) : nullptr;
  if (entry == nullptr) {
    PyErr_SetString(PyExc_TypeError, "note_modules(watched optimizer, list)");
    return nullptr;
  }
  std::vector<Object> found;
  bool trains = false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); ++i) {
    Object weak = Object::take(PyWeakref_NewRef(PyList_GET_ITEM(args[1], i), nullptr));
    if (!weak) {
      PyErr_Clear();
      continue;
    }
    found.push_back(std::move(weak));
    trains = trains || is_training(PyList_GET_ITEM(args[1], i));
  }
  if (!trains) found.clear();  // it trains in evaluation mode, so that mode does not distinguish an evaluation
  std::swap(checks().modules[entry->ordinal], found);  // another optimizer may have had this number before
  Py_RETURN_NONE;
}

PyObject* set_watch_checks(PyObject*, PyObject* on) {
  watch_checks(PyObject_IsTrue(on) == 1);
  Py_RETURN_NONE;
}

PyMethodDef script_check_table[] = {
    {"watch_checks", set_watch_checks, METH_O, nullptr},
    {"dropped_checks", dropped_checks, METH_NOARGS, nullptr},
    {"waiting_checks", waiting_checks, METH_NOARGS, nullptr},
    {"more_checks", more_checks, METH_NOARGS, nullptr},
    {"note_modules", reinterpret_cast<PyCFunction>(note_modules), METH_FASTCALL, nullptr},
    {"sink_waiting_checks", sink_waiting_checks, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void watch_checks(bool on) {
  Checks& c = checks();
  c.on = on;
  c.looks = 0;
  // Graphs that are held die after the mutex is free: that may run code of the program, which may look at a value.
  std::vector<CheckedLoss> checked, dropped;
  std::vector<Detached> copies;
  {
    const std::lock_guard lock(c.mutex);
    checked.swap(c.checked);
    copies.swap(c.copies);
    c.given.clear();
    c.waiting = c.copied = 0;
    c.more = c.last_more = 0;
  }
  dropped.swap(c.dropped);
  watch_check_methods(on);
}

bool watches_checks() noexcept { return checks().on.load(std::memory_order_relaxed); }

void value_checked(const at::Tensor& value) noexcept {
  if (is_of_a_loss(value)) note_look(value);
  if (is_looked_at(value) && is_bad(value, kMostElements)) [[unlikely]]
    note_checked(value);
}

void value_copied(const at::Tensor& value) noexcept {
  if (!is_of_a_loss(value)) return;
  note_look(value);
  if (is_bad(value, 1)) [[unlikely]]
    note_copied(value);
}

bool any_checked() noexcept {
  return checks().waiting.load(std::memory_order_relaxed) != 0 || checks().copied.load(std::memory_order_relaxed) != 0;
}

// A value is still in use if the graph of this backward has a node that is not younger than the value's last one. Else
// the whole graph was made after it: the script has dropped the step of that value.
std::size_t settle_checks(PyObject* roots) {
  end_checked_row();
  Checks& c = checks();
  std::vector<CheckedLoss> found;
  std::vector<Detached> copies;  // die after the mutex is free, as in watch_checks()
  {
    const std::lock_guard lock(c.mutex);
    found = std::exchange(c.checked, {});
    copies.swap(c.copies);
    c.waiting = c.copied = 0;
  }
  for (const at::Tensor& root : tensors_of(roots)) {
    walk(root, [&](const torch::autograd::Node& node, const torch::autograd::AccumulateGrad* leaf) {
      if (leaf == nullptr) {
        std::erase_if(found, [&](const CheckedLoss& l) { return node.sequence_nr() <= l.last_node; });
      }
      return !found.empty();
    });
  }
  std::size_t dropped = 0;
  for (CheckedLoss& loss : found) {
    if (live().closure_depth > 0 || owner_of(loss) == nullptr) continue;
    ++dropped;
    add_sink(loss, true);
    loss.held.reset();
    if (c.dropped.size() < kMostKept) {
      c.dropped.push_back(std::move(loss));
    } else {
      const std::lock_guard lock(c.mutex);
      ++c.more;
    }
  }
  return dropped;
}

void enter_asked(const at::Tensor& root, const at::Tensor& values, const c10::TensorImpl* parameter,
                 std::int64_t index) {
  observe::TensorView v;
  CheckedLoss found;
  if (!observe::view_of(*values.unsafeGetTensorImpl(), &v) || !describe(root, v, &found)) return;
  found.leaves = {parameter};
  set_step(&found);
  found.is_asked = true;
  found.parameter = index;
  if (is_evaluated(found)) return;
  if (found.held.defined()) found.held = values;
  const std::lock_guard lock(checks().mutex);
  enter(std::move(found));
}

void forget_asked() noexcept {
  Checks& c = checks();
  if (c.waiting.load(std::memory_order_relaxed) == 0) return;
  std::vector<CheckedLoss> gone;  // die after the mutex is free, as in watch_checks()
  const std::lock_guard lock(c.mutex);
  const auto first =
      std::stable_partition(c.checked.begin(), c.checked.end(), [](const CheckedLoss& loss) { return !loss.is_asked; });
  gone.assign(std::make_move_iterator(first), std::make_move_iterator(c.checked.end()));
  c.checked.erase(first, c.checked.end());
  c.waiting.store(c.checked.size());
}

void note_given(const at::Tensor& root) {
  Checks& c = checks();
  const Range range = range_of(root, nullptr);
  const std::lock_guard lock(c.mutex);
  if (c.given.size() >= kMostKept) c.given.erase(c.given.begin());
  if (range.first <= range.last) c.given.push_back(range);
}

bool any_dropped_check() noexcept { return !checks().dropped.empty(); }

PyMethodDef* script_check_methods() { return script_check_table; }

}  // namespace finitude::bindings
