#include "gate/dropped_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "gate/checked_row_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/requested_gradients_torch.h"
#include "gate/second_run.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

// Of the whole process. One backward that leaves several optimizers bad counts once, which the serials here are for.
struct Drops {
  std::uint32_t limit = 0;                        // so many in a row are asked about; 0: none
  std::uint64_t unapplied = 0;                    // windows since the last step that was applied, of any optimizer
  std::uint64_t by_scaler = 0;                    // of these, how many a GradScaler skipped
  std::uint64_t counted_at = 0, reported_at = 0;  // the last backward that counted there, and that counted a bad one
  std::uint64_t reported_loss =
      0;             // whose bad gradients were counted last: one optimizer may clear its own long after another
  bool due = false;  // some row has grown
  OptimizerEntry* begins = nullptr;  // with what the last backward has left here, a row may begin
};

Drops the_drops;

// The last backward after which one of the optimizers that step the same parameters was applied: a program may change
// from one to another, and never step the first again.
std::uint64_t last_applied(const OptimizerEntry& entry) {
  std::uint64_t last = entry.drops.applied_at;
  const auto& owner = live().owner;
  ParamGroups(entry.self).for_first(OptimizerEntry::kProbes, [&](std::uint32_t, PyObject* p) {
    if (!is_tensor_object(p)) return;
    auto [it, end] = owner.equal_range(THPVariable_Unpack(p).unsafeGetTensorImpl());
    for (; it != end; ++it) last = std::max(last, it->second.first->drops.applied_at);
  });
  return last;
}

// Has a step been applied since? Then the row is over.
void settle(OptimizerEntry& entry) {
  DropRow& row = entry.drops;
  if (row.length != 0 && is_alive(entry) && last_applied(entry) >= row.last) row.length = 0;
  if (row.length == 0) row.is_reported = false;
}

bool is_long(const OptimizerEntry& entry) {
  return the_drops.limit != 0 && entry.drops.length >= the_drops.limit && !entry.drops.is_reported;
}

void lengthen(OptimizerEntry& entry, Dropped what) {
  DropRow& row = entry.drops;
  settle(entry);
  ++row.length;
  row.last = live().backward_serial;
  row.is_norm = what == Dropped::kNorm;
  the_drops.due |= row.is_norm && is_long(entry);  // else with the next gradients that are bad
}

// The evaluations of a closure inside a step are trials of that step (a line search), not windows of their own.
bool is_trial() { return live().closure_depth > 0 || live().steps_open > 0; }

// watch_drops(limit): so many in a row are asked about.
PyObject* watch_drops(PyObject*, PyObject* limit) {
  const unsigned long value = PyLong_AsUnsignedLong(limit);
  if (PyErr_Occurred() != nullptr) return nullptr;
  the_drops = Drops();
  the_drops.limit = static_cast<std::uint32_t>(std::min<unsigned long>(value, UINT32_MAX));
  watch_checked_rows(the_drops.limit);
  for (const auto& entry : live().optimizers) entry->drops = DropRow();
  Py_RETURN_NONE;
}

// open_drops() -> [(ordinal, class, step, in a row, not reported yet, is the last one a norm, are gradients bad now,
// has the norm of the open window overflowed)] of all optimizers, also of those that are gone: a function that trained
// may have returned.
PyObject* open_drops(PyObject*, PyObject*) {
  Object list = Object::take(PyList_New(0));
  for (const auto& entry : live().optimizers) {
    if (!list) break;
    settle(*entry);
    const bool is_bad = std::any_of(entry->marks.begin(), entry->marks.end(), [](const GradMark& mark) {
      return mark.state > GradMark::kClean && mark.reported == 0;
    });
    const Object one = Object::take(
        Py_BuildValue("(IsKIIOOO)", static_cast<unsigned>(entry->ordinal), entry->class_name.c_str(),
                      static_cast<unsigned long long>(entry->step), static_cast<unsigned>(entry->drops.length),
                      static_cast<unsigned>(entry->drops.unreported), entry->drops.is_norm ? Py_True : Py_False,
                      is_bad ? Py_True : Py_False, entry->norm_overflow && entry->backwards != 0 ? Py_True : Py_False));
    if (!one || PyList_Append(list.get(), one.get()) != 0) list = Object();
  }
  return list.release();
}

// unapplied() -> (windows that have ended without a step since the last that was applied, how many of them a GradScaler
// skipped). To be called at the end of the program. A window that is open by then ends the row that the script has
// begun. Alone it does not count: a backward after the last step may be for anything.
PyObject* unapplied(PyObject*, PyObject*) {
  std::uint64_t count = the_drops.unapplied;
  const bool is_open = std::any_of(live().optimizers.begin(), live().optimizers.end(), [](const auto& entry) {
    return entry->backwards != 0 && entry->backwards >= entry->predicted;  // fewer: a part of a sum
  });
  if (count != the_drops.by_scaler && is_open) ++count;
  return Py_BuildValue("(KK)", static_cast<unsigned long long>(count),
                       static_cast<unsigned long long>(the_drops.by_scaler));
}

// take_norm_drops(optimizer) -> how many windows before the one that is open were dropped for a norm that overflowed,
// once.
PyObject* take_norm_drops(PyObject*, PyObject* optimizer) {
  OptimizerEntry* entry = find_entry(optimizer);
  const std::uint32_t count =
      entry != nullptr && entry->drops.unreported > entry->dropped ? entry->drops.unreported - entry->dropped : 0;
  if (count != 0) entry->drops.unreported = entry->dropped;
  return PyLong_FromUnsignedLong(count);
}

// take_drops(optimizer) -> how many windows were dropped since its last step and are not reported yet, once.
PyObject* take_drops(PyObject*, PyObject* optimizer) {
  OptimizerEntry* entry = find_entry(optimizer);
  return PyLong_FromUnsignedLong(entry != nullptr ? std::exchange(entry->drops.unreported, 0U) : 0U);
}

// zero_rows() -> [(class, first step, steps, did the script set gradients to zero after backward)] of optimizers whose
// last steps had nothing but zero gradients, though the loss was not zero.
PyObject* zero_rows(PyObject*, PyObject*) {
  Object list = Object::take(PyList_New(0));
  for (const auto& entry : live().optimizers) {
    if (!list) break;
    if (entry->zero_steps == 0) continue;
    const Object one = Object::take(Py_BuildValue(
        "(sKKO)", entry->class_name.c_str(), static_cast<unsigned long long>(entry->step - entry->zero_steps),
        static_cast<unsigned long long>(entry->zero_steps), entry->zeroed ? Py_True : Py_False));
    if (!one || PyList_Append(list.get(), one.get()) != 0) list = Object();
  }
  return list.release();
}

// add_handled(count): bad steps that the script handled itself, as the Python side counts them.
PyObject* add_handled(PyObject*, PyObject* count) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(count);
  if (PyErr_Occurred() != nullptr) return nullptr;
  live().counters.handled_by_script += value;
  Py_RETURN_NONE;
}

PyMethodDef dropped_table[] = {
    {"watch_drops", watch_drops, METH_O, nullptr},         {"open_drops", open_drops, METH_NOARGS, nullptr},
    {"zero_rows", zero_rows, METH_NOARGS, nullptr},        {"unapplied", unapplied, METH_NOARGS, nullptr},
    {"take_norm_drops", take_norm_drops, METH_O, nullptr}, {"add_handled", add_handled, METH_O, nullptr},
    {"take_drops", take_drops, METH_O, nullptr},           {nullptr, nullptr, 0, nullptr},
};

}  // namespace

// Called for each optimizer after the same backward: the exchanges make the first call count and the others not.
bool note_dropped(OptimizerEntry& entry, Dropped what, std::uint64_t bad_since) {
  if (is_of_second_run() || is_trial()) return true;
  const std::uint64_t serial = live().backward_serial;
  the_drops.unapplied += std::exchange(the_drops.counted_at, serial) != serial;
  if (what == Dropped::kFinite) return true;
  const bool is_known = bad_since != 0 && std::exchange(the_drops.reported_loss, bad_since) == bad_since;
  entry.drops.unreported += std::exchange(the_drops.reported_at, serial) != serial && !is_known;
  lengthen(entry, what);
  return !is_known;
}

// A step with only zero gradients that replaced bad ones (a script that zeroes them and steps) does not end a row:
// nothing was learned in it.
void note_learned(OptimizerEntry& entry, bool learns) {
  if (is_of_second_run()) return;
  if (!learns && entry.laundered) return lengthen(entry, Dropped::kBad);
  entry.drops.applied_at = live().backward_serial;
  the_drops.unapplied = the_drops.by_scaler = 0;
  end_asked_row();
  note_step_of_looks();
}

bool is_long_row(std::uint64_t length) noexcept {
  return the_drops.limit != 0 && length >= the_drops.limit && !is_of_second_run();
}

void note_scaler_skip() noexcept {
  ++the_drops.unapplied;
  ++the_drops.by_scaler;
}

// Only notes that Python is to be asked: this runs inside a walk over all optimizers, in which no Python may run.
// Python asks for what was dropped afterwards.
void note_left_bad(OptimizerEntry& entry) {
  if (is_of_second_run() || is_trial() || the_drops.limit == 0) return;
  settle(entry);
  the_drops.due |= is_long(entry);
  if (entry.drops.length == 0 && the_drops.begins == nullptr) the_drops.begins = &entry;
}

// In a healthy step two tests. Callbacks may make or free optimizers, so the list is collected first, and a strong
// reference holds the optimizer during its own call.
bool report_dropped() {
  if (!the_drops.due && the_drops.begins == nullptr) return true;
  const bool due = std::exchange(the_drops.due, false);
  // It may have been freed since, where a callback in between has raised.
  const OptimizerEntry* const begins = std::exchange(the_drops.begins, nullptr);
  const auto& entries = live().optimizers;
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.get() == begins; });
  if (found != entries.end() && is_alive(**found)) {
    const Object optimizer = Object::share((*found)->self);
    if (!call_cold("on_bad_backward", optimizer.get())) return false;
  }
  if (!due) return true;
  std::vector<OptimizerEntry*> rows;
  for (const auto& entry : live().optimizers) {
    if (is_long(*entry) && is_alive(*entry)) rows.push_back(entry.get());
  }
  if (rows.empty()) return true;
  OptimizerEntry* const entry = rows.front();  // one backward is one alarm
  const Object optimizer = Object::share(entry->self);
  const Object r = call_cold("on_dropped", optimizer.get());
  if (r.get() == Py_True) entry->drops.is_reported = true;
  return static_cast<bool>(r);
}

PyMethodDef* dropped_methods() { return dropped_table; }

}  // namespace finitude::bindings
