#include "rewind/loader_indices_python.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "base/immortal.h"
#include "pyhost/attributes_python.h"

namespace finitude::bindings {
namespace {

constexpr Py_ssize_t kMaxSamples = 1 << 16;  // of a batch whose indices are kept

PyObject* named(const char* text) { return PyUnicode_InternFromString(text); }

// Where the iterator keeps the indices of the batches that its workers are making: {number of the task: indices}.
PyObject* indices_key() {
  static PyObject* const key = named("_finitude_indices");
  return key;
}

// The indices as a tuple or an int; empty where they are none. A list is copied, since a sampler may use
// it for the next batch. IterableDataset has no indices: its sampler gives lists of None.
Object copy_of_indices(PyObject* index) {
  if (PyLong_Check(index)) return Object::share(index);
  if (PyTuple_CheckExact(index)) return PyTuple_GET_SIZE(index) <= kMaxSamples ? Object::share(index) : Object();
  if (!PyList_CheckExact(index) || PyList_GET_SIZE(index) > kMaxSamples) return Object();
  if (PyList_GET_SIZE(index) > 0 && PyList_GET_ITEM(index, 0) == Py_None) return Object();  // of an IterableDataset
  return Object::take(PyList_AsTuple(index));
}

// Iterators that make a batch in this process now, and of what. Usually one; more where a data set draws from a loader
// of its own while it makes a sample.
struct Fetch {
  const PyObject* iterator;  // not held: it is only compared
  Object indices;
};
// Those of fetches that raised are among them, until their iterator fetches again.
constexpr std::size_t kMostFetches = 16;

std::vector<Fetch>& fetches() {
  static auto* const list = new std::vector<Fetch>();
  return *list;
}

// From the back, as the innermost fetch ends first.
Object take_fetch(const PyObject* iterator) {
  auto& list = fetches();
  for (std::size_t i = list.size(); i-- > 0;) {
    if (list[i].iterator != iterator) continue;
    Object indices = std::move(list[i].indices);
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    return indices;
  }
  return Object();
}

// A fetch that raised never gave its batch: its entry is replaced here, or is the oldest and goes when the list is
// full. It is dropped last: its destructor may come back to the list.
void begin_fetch(const PyObject* iterator, Object indices) {
  Object stale = take_fetch(iterator);
  auto& list = fetches();
  if (!stale && list.size() >= kMostFetches) stale = take_fetch(list.front().iterator);
  list.push_back({iterator, std::move(indices)});
}

// The last class whose iterators make batches in this process; held, so that no other class gets its address.
base::Immortal<Object> the_class_here;

// Does its class make batches in this process? Iterators with workers count the tasks that they send (_send_idx),
// others have no such attribute.
bool fetches_here(PyObject* iterator) {
  static PyObject* const sent = named("_send_idx");
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(iterator));
  if (type == (*the_class_here).get()) return true;
  if (own_attribute(iterator, sent)) return false;
  *the_class_here = Object::share(type);
  return true;
}

// Removes the indices of the batch that was just given from {number of the task: indices}. Empty where batches come
// in the order in which workers finish (in_order=False), as their task is then not known. _rcvd_idx already counts the
// batch when the iterator returns it.
//
// Workers get tasks in turn. One of a data set with indices takes part to the end.
Object take_task(PyObject* iterator, PyObject* tasks, std::int32_t* worker) {
  static PyObject* const workers = named("_num_workers");
  static PyObject* const received = named("_rcvd_idx");
  static PyObject* const in_order = named("_in_order");
  const Object number = own_attribute(iterator, received);
  if (!number || !PyLong_Check(number.get())) return Object();
  const long long task = PyLong_AsLongLong(number.get()) - 1;
  const Object key = Object::take(PyLong_FromLongLong(task));
  if (!key) return Object();
  const Object ordered = own_attribute(iterator, in_order);
  Object found;  // else they come as they are done
  if (ordered.get() != Py_False) found = Object::share(PyDict_GetItemWithError(tasks, key.get()));
  if (PyDict_DelItem(tasks, key.get()) != 0) PyErr_Clear();
  const Object count = found ? own_attribute(iterator, workers) : Object();
  if (const long long all = count && PyLong_Check(count.get()) ? PyLong_AsLongLong(count.get()) : 0; all > 0)
    *worker = static_cast<std::int32_t>(task % all);
  return found;
}

}  // namespace

void keep_indices(PyObject* iterator, PyObject* index) {
  static PyObject* const sent = named("_send_idx");
  Object copy = copy_of_indices(index);
  if (!copy) {
    PyErr_Clear();
    return;
  }
  if (fetches_here(iterator)) return begin_fetch(iterator, std::move(copy));
  if (const Object number = own_attribute(iterator, sent)) {
    // The table is an attribute of the iterator, and so goes away with it.
    Object tasks = own_attribute(iterator, indices_key());
    if (!tasks) {
      tasks = Object::take(PyDict_New());
      if (tasks) set_own_attribute(iterator, indices_key(), tasks.get());
    }
    if (tasks && PyDict_CheckExact(tasks.get())) PyDict_SetItem(tasks.get(), number.get(), copy.get());
  }
  PyErr_Clear();
}

Object take_indices(PyObject* iterator, std::int32_t* worker) {
  if (fetches_here(iterator)) return take_fetch(iterator);
  const Object kept = own_attribute(iterator, indices_key());
  if (!kept || !PyDict_CheckExact(kept.get())) return Object();
  Object found = take_task(iterator, kept.get(), worker);
  PyErr_Clear();
  return found;
}

}  // namespace finitude::bindings
