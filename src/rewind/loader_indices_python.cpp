#include "rewind/loader_indices_python.h"

#include <cstddef>
#include <vector>

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

// The indices as a tuple or an int, new reference; null where they are none. A list is copied, since a sampler may use
// it for the next batch. IterableDataset has no indices: its sampler gives lists of None.
PyObject* copy_of_indices(PyObject* index) {
  if (PyLong_Check(index)) return Py_NewRef(index);
  if (PyTuple_CheckExact(index)) return PyTuple_GET_SIZE(index) <= kMaxSamples ? Py_NewRef(index) : nullptr;
  if (!PyList_CheckExact(index) || PyList_GET_SIZE(index) > kMaxSamples) return nullptr;
  if (PyList_GET_SIZE(index) > 0 && PyList_GET_ITEM(index, 0) == Py_None) return nullptr;  // of an IterableDataset
  return PyList_AsTuple(index);
}

// Iterators that make a batch in this process now, and of what. Usually one; more where a data set draws from a loader
// of its own while it makes a sample.
struct Fetch {
  const PyObject* iterator;  // not held: it is only compared
  PyObject* indices;
};
constexpr std::size_t kMostFetches =
    16;  // those of fetches that raised are among them, until their iterator fetches again

std::vector<Fetch>& fetches() {
  static auto* const list = new std::vector<Fetch>();
  return *list;
}

// The caller gets the reference that the list had. From the back, as the innermost fetch ends first.
PyObject* take_fetch(const PyObject* iterator) {
  auto& list = fetches();
  for (std::size_t i = list.size(); i-- > 0;) {
    if (list[i].iterator != iterator) continue;
    PyObject* indices = list[i].indices;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    return indices;
  }
  return nullptr;
}

// Takes over the reference to `indices`. A fetch that raised never gave its batch: its entry is replaced here, or is
// the oldest and goes when the list is full. It is dropped last: its destructor may come back to the list.
void begin_fetch(const PyObject* iterator, PyObject* indices) {
  PyObject* stale = take_fetch(iterator);
  auto& list = fetches();
  if (stale == nullptr && list.size() >= kMostFetches) stale = take_fetch(list.front().iterator);
  list.push_back({iterator, indices});
  Py_XDECREF(stale);
}

// Does its class make batches in this process? Iterators with workers count the tasks that they send (_send_idx),
// others have no such attribute. The last class without it is held, so that no other class gets its address.
bool fetches_here(PyObject* iterator) {
  static PyObject* const sent = named("_send_idx");
  static PyTypeObject* here = nullptr;  // held
  if (Py_TYPE(iterator) == here) return true;
  PyObject* number = own_attribute(iterator, sent);
  if (number == nullptr) {
    Py_INCREF(Py_TYPE(iterator));
    Py_XSETREF(here, Py_TYPE(iterator));
  }
  Py_XDECREF(number);
  return number == nullptr;
}

// Removes the indices of the batch that was just given from {number of the task: indices}. New reference; null where
// batches come in the order in which workers finish (in_order=False), as their task is then not known. _rcvd_idx
// already counts the batch when the iterator returns it.
PyObject* take_task(PyObject* iterator, PyObject* tasks) {
  static PyObject* const received = named("_rcvd_idx");
  static PyObject* const in_order = named("_in_order");
  PyObject* number = own_attribute(iterator, received);
  PyObject* ordered = own_attribute(iterator, in_order);
  PyObject* key =
      number != nullptr && PyLong_Check(number) ? PyLong_FromLongLong(PyLong_AsLongLong(number) - 1) : nullptr;
  PyObject* found = key != nullptr && ordered != Py_False ? PyDict_GetItemWithError(tasks, key)
                                                          : nullptr;  // else they come as they are done
  Py_XINCREF(found);
  if (key != nullptr && PyDict_DelItem(tasks, key) != 0) PyErr_Clear();
  Py_XDECREF(key);
  Py_XDECREF(ordered);
  Py_XDECREF(number);
  return found;
}

}  // namespace

void keep_indices(PyObject* iterator, PyObject* index) {
  static PyObject* const sent = named("_send_idx");
  PyObject* copy = copy_of_indices(index);
  if (copy == nullptr) {
    PyErr_Clear();
    return;
  }
  if (fetches_here(iterator)) {
    begin_fetch(iterator, copy);
    return;
  }
  PyObject* number = own_attribute(iterator, sent);
  if (number != nullptr) {
    // The table is an attribute of the iterator, and so goes away with it.
    PyObject* tasks = own_attribute(iterator, indices_key());
    if (tasks == nullptr && (tasks = PyDict_New()) != nullptr) set_own_attribute(iterator, indices_key(), tasks);
    if (tasks != nullptr && PyDict_CheckExact(tasks)) PyDict_SetItem(tasks, number, copy);
    Py_XDECREF(tasks);
  }
  Py_XDECREF(number);
  Py_DECREF(copy);
  PyErr_Clear();
}

PyObject* take_indices(PyObject* iterator) {
  if (fetches_here(iterator)) return take_fetch(iterator);
  PyObject* kept = own_attribute(iterator, indices_key());
  if (kept == nullptr || !PyDict_CheckExact(kept)) {
    Py_XDECREF(kept);
    return nullptr;
  }
  PyObject* found = take_task(iterator, kept);
  Py_DECREF(kept);
  PyErr_Clear();
  return found;
}

}  // namespace finitude::bindings
