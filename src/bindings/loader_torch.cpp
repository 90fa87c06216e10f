#include "bindings/loader_torch.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/checksum.h"
#include "bindings/attributes_python.h"
#include "bindings/live_torch.h"
#include "bindings/meter.h"
#include "bindings/rewind_torch.h"
#include "bindings/template_tape_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMaxEvents = 4096;
constexpr std::size_t kMaxSpare = 16;
constexpr std::size_t kSumBytes = 512;   // read of one tensor, some here and some there: each place costs a cache miss
constexpr std::size_t kSumStretch = 128;
constexpr int kMaxDepth = 6;
constexpr int kMaxTensors = 256;

struct Walk {
  void (*visit)(PyObject*, const BatchPath&, void*);
  void* data;
  int left = kMaxTensors;
};

// Containers first: what is no tensor costs torch a walk over its classes to tell.
void walk(PyObject* object, const BatchPath& path, int depth, Walk* w) {
  if (object == nullptr || depth > kMaxDepth || w->left <= 0) return;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < n && w->left > 0; ++i) walk(PySequence_Fast_GET_ITEM(object, i), {&path, i, nullptr}, depth + 1, w);
  } else if (PyDict_Check(object)) {
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(object, &pos, &key, &value)) walk(value, {&path, 0, key}, depth + 1, w);
  } else if (THPVariable_Check(object)) {
    --w->left;
    w->visit(object, path, w->data);
  }
}

struct BatchSum {
  std::uint64_t sum = 0;
  std::size_t size_bytes = 0;
};

BatchSum sum_of(PyObject* batch) {
  BatchSum sum;
  for_each_tensor(batch, [](PyObject* t, const BatchPath&, void* data) {
    observe::TensorView v;
    if (!observe::view_of(*THPVariable_Unpack(t).unsafeGetTensorImpl(), &v)) return;
    auto* out = static_cast<BatchSum*>(data);
    const auto size_bytes = static_cast<std::size_t>(v.end - v.begin);
    const auto seed = out->sum + static_cast<std::uint64_t>(v.numel);
    out->size_bytes += size_bytes;
    if (size_bytes <= kSumBytes) {
      out->sum = base::checksum(v.data, size_bytes, seed);
      return;
    }
    // First, last, and evenly in between: what changes a batch in place changes it all over.
    constexpr std::size_t kStretches = kSumBytes / kSumStretch;
    char sample[kSumBytes];
    for (std::size_t i = 0; i < kStretches; ++i) {
      const std::size_t at = (size_bytes - kSumStretch) / (kStretches - 1) * i;
      std::memcpy(sample + i * kSumStretch, v.data + at, kSumStretch);
    }
    out->sum = base::checksum(sample, kSumBytes, seed);
  }, &sum);
  return sum;
}

constexpr Py_ssize_t kMaxSamples = 1 << 16;  // of a batch whose indices are kept

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// Where the iterator keeps the indices of the batches that its workers are making: {number of the task: indices}.
PyObject* indices_key() {
  static PyObject* const key = interned("_finitude_indices");
  return key;
}

// A copy where the sampler may use its list again; null where these are no indices.
PyObject* copy_of_indices(PyObject* index) {
  if (PyLong_Check(index)) return Py_NewRef(index);
  if (PyTuple_CheckExact(index)) return PyTuple_GET_SIZE(index) <= kMaxSamples ? Py_NewRef(index) : nullptr;
  if (!PyList_CheckExact(index) || PyList_GET_SIZE(index) > kMaxSamples) return nullptr;
  if (PyList_GET_SIZE(index) > 0 && PyList_GET_ITEM(index, 0) == Py_None) return nullptr;  // of an IterableDataset
  return PyList_AsTuple(index);
}

// Iterators that make a batch in this process now, and of what: one, or some where a data set draws from a loader of its own.
struct Fetch {
  const PyObject* iterator;  // not held: it is only compared
  PyObject* indices;
};
constexpr std::size_t kMostFetches = 16;  // those of fetches that raised are among them, until their iterator fetches again

std::vector<Fetch>& fetches() {
  static auto* const list = new std::vector<Fetch>();
  return *list;
}

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

void begin_fetch(const PyObject* iterator, PyObject* indices) {
  PyObject* stale = take_fetch(iterator);
  auto& list = fetches();
  if (stale == nullptr && list.size() >= kMostFetches) stale = take_fetch(list.front().iterator);
  list.push_back({iterator, indices});
  Py_XDECREF(stale);
}

// Does its class make batches in this process? Asked of each class once: the question costs as much as all else here.
bool fetches_here(PyObject* iterator) {
  static PyObject* const sent = interned("_send_idx");
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

void keep_indices(PyObject* iterator, PyObject* index) {
  static PyObject* const sent = interned("_send_idx");
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
    PyObject* tasks = own_attribute(iterator, indices_key());
    if (tasks == nullptr && (tasks = PyDict_New()) != nullptr) set_own_attribute(iterator, indices_key(), tasks);
    if (tasks != nullptr && PyDict_CheckExact(tasks)) PyDict_SetItem(tasks, number, copy);
    Py_XDECREF(tasks);
  }
  Py_XDECREF(number);
  Py_DECREF(copy);
  PyErr_Clear();
}

// From {number of the task: indices}, and not kept there any longer.
PyObject* take_task(PyObject* iterator, PyObject* tasks) {
  static PyObject* const received = interned("_rcvd_idx");
  static PyObject* const in_order = interned("_in_order");
  PyObject* number = own_attribute(iterator, received);
  PyObject* ordered = own_attribute(iterator, in_order);
  PyObject* key = number != nullptr && PyLong_Check(number) ? PyLong_FromLongLong(PyLong_AsLongLong(number) - 1) : nullptr;
  PyObject* found = key != nullptr && ordered != Py_False ? PyDict_GetItemWithError(tasks, key) : nullptr;  // else they come as they are done
  Py_XINCREF(found);
  if (key != nullptr && PyDict_DelItem(tasks, key) != 0) PyErr_Clear();
  Py_XDECREF(key);
  Py_XDECREF(ordered);
  Py_XDECREF(number);
  return found;
}

// Of the batch that the iterator has just given. A new reference; null: not known.
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

void name_for_trace(PyObject* batch) {
  for_each_tensor(batch, [](PyObject* t, const BatchPath& path, void*) {
    observe::Tracer::get().name_batch(*THPVariable_Unpack(t).unsafeGetTensorImpl(), path.text());
  }, nullptr);
}

// null: of what is in a batch nothing can be taken out, or it is of a class that may do something else then.
PyObject* copy_of_content(PyObject* batch) {
  PyObject* copy = PyDict_CheckExact(batch)   ? PyDict_Copy(batch)
                   : PyList_CheckExact(batch) ? PyList_GetSlice(batch, 0, PyList_GET_SIZE(batch))
                                              : nullptr;
  if (copy == nullptr) PyErr_Clear();
  return copy;
}

// Has something been taken out of it, put in or exchanged?
bool holds_other_things(PyObject* batch, PyObject* content) {
  if (PyList_CheckExact(batch)) {
    const Py_ssize_t count = PyList_GET_SIZE(content);
    bool same = PyList_GET_SIZE(batch) == count;
    for (Py_ssize_t i = 0; same && i < count; ++i) same = PyList_GET_ITEM(batch, i) == PyList_GET_ITEM(content, i);
    return !same;
  }
  PyObject *key, *value, *key_now, *value_now;
  Py_ssize_t at = 0, at_now = 0;
  bool same = PyDict_GET_SIZE(batch) == PyDict_GET_SIZE(content);
  while (same && PyDict_Next(content, &at, &key, &value))
    same = PyDict_Next(batch, &at_now, &key_now, &value_now) && key == key_now && value == value_now;
  return !same;
}

void put_content_back(PyObject* batch, PyObject* content) {
  if (content == nullptr || !holds_other_things(batch, content)) return;
  if (PyList_CheckExact(batch)) {
    if (PyList_SetSlice(batch, 0, PyList_GET_SIZE(batch), content) != 0) PyErr_Clear();
    return;
  }
  PyDict_Clear(batch);
  if (PyDict_Update(batch, content) != 0) PyErr_Clear();
}

}  // namespace

std::string BatchPath::text() const {
  if (outer == nullptr) return "batch";
  if (key == nullptr) return outer->text() + "[" + std::to_string(index) + "]";
  const char* text = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return outer->text() + "[" + (text != nullptr ? text : "?") + "]";
}

void for_each_tensor(PyObject* batch, void (*visit)(PyObject*, const BatchPath&, void*), void* data) {
  Walk w{visit, data};
  walk(batch, {}, 0, &w);
}

void LoaderLog::forget() {
  begin_window(position());
  Py_CLEAR(earlier_.indices);
  earlier_ = Earlier();
}

void LoaderLog::spare(std::unique_ptr<RngState> state) {
  if (state && spare_.size() < kMaxSpare) spare_.push_back(std::move(state));
}

void LoaderLog::keep_last_of(std::vector<LoaderEvent>* old) {
  std::size_t last = old->size();
  while (last > 0 && ((*old)[last - 1].kind != LoaderEvent::kNext || !(*old)[last - 1].grad_mode)) --last;
  if (last-- == 0) return;
  LoaderEvent& e = (*old)[last];
  std::unique_ptr<RngState> before = std::move(last > 0 ? (*old)[last - 1].after : earlier_.after);
  spare(std::move(earlier_.before));
  spare(std::move(earlier_.after));
  earlier_.owner = e.owner;
  earlier_.sum = e.sum;
  earlier_.size_bytes = e.size_bytes;
  earlier_.before = std::move(before);
  earlier_.after = std::move(e.after);
  std::swap(earlier_.indices, e.indices);  // the one before is let go of with the events
}

bool LoaderLog::origin_of(PyObject* batch, BatchOrigin* origin) const {
  const BatchSum sum = sum_of(batch);
  if (sum.size_bytes == 0) return false;
  for (std::size_t i = events_.size(); i-- > 0;) {
    const LoaderEvent& e = events_[i];
    if (e.kind != LoaderEvent::kNext || !e.grad_mode || e.sum != sum.sum || e.size_bytes != sum.size_bytes) continue;
    *origin = {e.owner, e.indices, i > 0 ? events_[i - 1].after.get() : earlier_.after.get(), e.after.get()};
    return true;
  }
  if (earlier_.owner == nullptr || earlier_.sum != sum.sum || earlier_.size_bytes != sum.size_bytes) return false;
  for (const LoaderEvent& e : events_) {
    if (e.owner != earlier_.owner || e.kind == LoaderEvent::kIter) continue;
    *origin = {e.owner, earlier_.indices, earlier_.before.get(), earlier_.after.get()};
    return true;
  }
  return false;
}

void LoaderLog::begin_window(std::size_t oldest) {
  if (replaying_) return;
  const Metered loader(Piece::kLoader);
  window_ = position();
  const std::size_t count = std::min(std::max(oldest, base_) - base_, events_.size());
  if (count == 0) return;
  // Dropping a batch can run arbitrary destructors; they must find the log consistent.
  std::vector<LoaderEvent> old;
  old.swap(events_);
  for (std::size_t i = count; i < old.size(); ++i) events_.push_back(std::move(old[i]));
  base_ += count;
  old.resize(count);
  keep_last_of(&old);
  for (LoaderEvent& e : old) {
    size_bytes_ -= e.size_bytes;
    Py_DECREF(e.owner);
    Py_XDECREF(e.result);
    Py_XDECREF(e.content);
    Py_XDECREF(e.indices);
    spare(std::move(e.after));
  }
  old.clear();
  if (events_.empty()) events_.swap(old);  // its memory, for the next window
}

std::unique_ptr<RngState> LoaderLog::rng_now() {
  std::unique_ptr<RngState> state;
  if (spare_.empty()) {
    state = std::make_unique<RngState>();
  } else {
    state = std::move(spare_.back());
    spare_.pop_back();
  }
  take_rng(state.get());
  return state;
}

const RngState* LoaderLog::last_fetch() const {
  for (std::size_t i = events_.size(); i-- > 0 && base_ + i >= window_;) {
    if (events_[i].kind == LoaderEvent::kNext) return events_[i].after.get();
  }
  return nullptr;
}

std::vector<const LoaderEvent*> LoaderLog::batches_since(std::size_t position) const {
  std::vector<const LoaderEvent*> found;
  for (std::size_t i = std::max(position, base_) - base_; i < events_.size(); ++i) {
    if (events_[i].kind == LoaderEvent::kNext && events_[i].grad_mode) found.push_back(&events_[i]);
  }
  return found;
}

bool is_unchanged(const LoaderEvent& event) { return sum_of(event.result).sum == event.sum; }

bool LoaderLog::wants() const { return live().on && live().keeps_window_start && !replaying_; }

void LoaderLog::begin_replay(std::size_t position) {
  replaying_ = true;
  position_ = position - base_;
  diverged_ = nullptr;
}

bool LoaderLog::end_replay(const char** why) {
  replaying_ = false;
  if (diverged_ == nullptr && position_ < events_.size()) diverged_ = "the second run asked for fewer batches";
  *why = diverged_;
  return diverged_ == nullptr;
}

PyObject* LoaderLog::replay(LoaderEvent::Kind kind, PyObject* owner, bool* matched) {
  *matched = false;
  if (position_ >= events_.size()) {
    diverged_ = "the second run asked for more batches";
    return nullptr;
  }
  LoaderEvent& e = events_[position_];
  const bool fits = e.owner == owner && (kind == LoaderEvent::kIter ? e.kind == LoaderEvent::kIter : e.kind != LoaderEvent::kIter);
  if (!fits) {
    diverged_ = "the second run used its loaders in another order";
    return nullptr;
  }
  *matched = true;
  ++position_;
  if (e.result != nullptr && e.kind == LoaderEvent::kNext) put_content_back(e.result, e.content);
  if (e.result != nullptr && e.kind == LoaderEvent::kNext && sum_of(e.result).sum != e.sum) diverged_ = "a batch was changed in place";
  restore_rng(*e.after);
  if (e.kind == LoaderEvent::kNext && observe::Tracer::get().on()) name_for_trace(e.result);
  Py_XINCREF(e.result);
  return e.result;  // null without an error set: StopIteration
}

PyObject* LoaderLog::iter(PyObject* loader) {
  if (replaying_) {
    bool matched = false;
    PyObject* result = replay(LoaderEvent::kIter, loader, &matched);
    if (matched) return result;
  }
  PyObject* result;
  {
    const WithoutTemplate unrecorded;
    result = PyObject_CallOneArg(original_iter, loader);
  }
  if (result != nullptr && wants() && events_.size() < kMaxEvents) {
    const Metered noted(Piece::kLoader);
    Py_INCREF(loader);
    Py_INCREF(result);
    events_.push_back({LoaderEvent::kIter, loader, result, rng_now(), 0, 0});
  }
  return result;
}

PyObject* LoaderLog::next_index(PyObject* iterator) {
  PyObject* index = PyObject_CallOneArg(original_next_index, iterator);
  if (index == nullptr || !wants()) return index;
  const Metered noted(Piece::kLoader);
  keep_indices(iterator, index);
  return index;
}

PyObject* LoaderLog::next(PyObject* iterator) {
  if (replaying_) {
    bool matched = false;
    PyObject* result = replay(LoaderEvent::kNext, iterator, &matched);
    if (matched) {
      if (result == nullptr) PyErr_SetNone(PyExc_StopIteration);
      return result;
    }
  }
  PyObject* result;
  {
    const WithoutTemplate unrecorded;
    observe::Tracer::PhaseGuard phase(record::Phase::kData);
    result = PyObject_CallOneArg(original_next, iterator);
  }
  if (!wants() || events_.size() >= kMaxEvents) return result;
  const Metered noted(Piece::kLoader);
  if (result == nullptr && !PyErr_ExceptionMatches(PyExc_StopIteration)) return result;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  Py_INCREF(iterator);
  Py_XINCREF(result);
  const BatchSum sum = result != nullptr ? sum_of(result) : BatchSum();
  size_bytes_ += sum.size_bytes;
  events_.push_back({result != nullptr ? LoaderEvent::kNext : LoaderEvent::kStop, iterator, result, rng_now(), sum.sum, sum.size_bytes, c10::GradMode::is_enabled(),
                     result != nullptr ? copy_of_content(result) : nullptr, result != nullptr ? take_indices(iterator) : nullptr});
  if (result != nullptr) batch_given();
  if (result != nullptr && observe::Tracer::get().on()) name_for_trace(result);
  if (result != nullptr && events_.back().grad_mode) template_batch_given();
  PyErr_Restore(type, value, trace);
  return result;
}

}  // namespace finitude::bindings
