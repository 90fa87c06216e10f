#include "gate/state_torch.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "gate/listeners.h"
#include "observe/own_training.h"

namespace finitude::bindings {

// constinit: read on each backward without a guard for initialization.
constinit thread_local int engine_depth = 0;

// A thread of the engine has no engine_depth of its own, but works for a graph task.
bool in_backward() noexcept { return engine_depth > 0 || torch::autograd::get_current_graph_task_id() != -1; }

std::uint64_t this_thread() noexcept { return PyThreadState_GetID(PyThreadState_Get()); }

// Finds out whether threads take turns in stepping: then each of them trains a model of its own, and their losses are
// separated. A program that moves its one loop to another thread once is not such a program. The list of threads is
// bounded, and never shrinks.
void note_thread(OptimizerEntry& entry) {
  constexpr std::size_t kMostThreads = 64;
  Live& l = live();
  entry.thread = observe::training_thread = this_thread();
  if (entry.thread == l.step_thread) [[likely]]
    return;
  if (std::find(l.threads.begin(), l.threads.end(), entry.thread) != l.threads.end())
    l.threads_take_turns = true;
  else if (l.threads.size() < kMostThreads)
    l.threads.push_back(entry.thread);
  l.step_thread = entry.thread;
}

// A thread that trains nothing sees all of them: the main thread at the end of a program, a pool whose threads take a
// step each.
bool has_own_training() noexcept {
  const Live& l = live();
  return l.threads_take_turns && std::any_of(l.optimizers.begin(), l.optimizers.end(),
                                             [thread = this_thread()](const auto& e) { return e->thread == thread; });
}

void trace_own_training() noexcept { observe::traced_training = has_own_training() ? this_thread() : 0; }

bool is_trained_here(const OptimizerEntry& entry) noexcept {
  return entry.thread == 0 || !has_own_training() || entry.thread == this_thread();
}

// Linear, since a program has few optimizers; no allocation. The weak reference is compared too: `self` is borrowed,
// and a new optimizer may lie at the address of a dead one. The pointer is valid until new_entry() is called after the
// optimizer has died: hold the optimizer.
OptimizerEntry* find_entry(PyObject* optimizer) noexcept {
  for (const auto& entry : live().optimizers) {
    if (entry->self == optimizer && is_alive(*entry)) return entry.get();
  }
  return nullptr;
}

bool is_known(const OptimizerEntry& entry) noexcept {
  const auto& all = live().optimizers;
  return std::any_of(all.begin(), all.end(), [&](const auto& e) { return e.get() == &entry; });
}

namespace {

// Entries are freed only here, not when the optimizer dies: its weak reference has no callback, which could run in the
// middle of a walk. A program that tries out many optimizers would otherwise leave thousands of entries to walk over
// in every step. `owner` is cleaned first, as it points to the entries. They die last: what an entry still holds of the
// program (gradients, a copy of the state) may run code of it as it dies, which finds both lists whole.
void forget_dead() {
  Live& l = live();
  std::erase_if(l.owner, [](const auto& item) { return !is_alive(*item.second.first); });
  const auto first =
      std::stable_partition(l.optimizers.begin(), l.optimizers.end(), [](const auto& e) { return is_alive(*e); });
  const std::vector<std::unique_ptr<OptimizerEntry>> dead(std::make_move_iterator(first),
                                                          std::make_move_iterator(l.optimizers.end()));
  l.optimizers.erase(first, l.optimizers.end());
  for (const auto& e : dead) listeners().optimizer_gone(*e);
}

}  // namespace

// Null, without an error set: the optimizer takes no weak reference. Entries are held by unique_ptr, so that growth of
// the list leaves pointers to them valid.
OptimizerEntry* new_entry(PyObject* optimizer) {
  forget_dead();
  listeners().optimizer_made();
  Object ref = Object::take(PyWeakref_NewRef(optimizer, nullptr));
  if (!ref) {
    PyErr_Clear();
    return nullptr;
  }
  Live& l = live();
  auto entry = std::make_unique<OptimizerEntry>();
  entry->self = optimizer;
  entry->ref = std::move(ref);
  entry->ordinal = l.next_ordinal++;
  entry->class_name = Py_TYPE(optimizer)->tp_name;
  if (const auto dot = entry->class_name.rfind('.'); dot != std::string::npos) entry->class_name.erase(0, dot + 1);
  l.optimizers.push_back(std::move(entry));
  return l.optimizers.back().get();
}

}  // namespace finitude::bindings
