#include "rewind/loader_torch.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "gate/listeners.h"
#include "gate/state_torch.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/saved_error_python.h"
#include "rewind/loader_datasets_python.h"
#include "rewind/loader_indices_python.h"
#include "rewind/window_start_torch.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMaxEvents = 4096;
constexpr std::size_t kMaxSpare = 16;
constexpr std::size_t kSumBytes = 512;  // read of one tensor, some here and some there: each place costs a cache miss
constexpr std::size_t kSumStretch = 128;
constexpr int kMaxDepth = 6;
constexpr int kMaxTensors = 256;

// While one lives, the tape and trace of a template are paused: a loader is at work. A template is played on the batch
// of a later step, so what made the batch must not be on it.
class Unrecorded {
 public:
  Unrecorded() : pauses_(listeners().records_losses()) {
    if (pauses_) pause(true);
  }
  ~Unrecorded() {
    if (pauses_) pause(false);
  }
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;

 private:
  static void pause(bool on) {
    observe::TapeRecorder::get().pause(on);
    observe::Tracer::get().pause(on);
  }
  const bool pauses_;
};

struct Walk {
  void (*visit)(PyObject*, const BatchPath&, void*);
  void* data;
  int left = kMaxTensors;
};

// Containers first: is_tensor_object walks over an object's base classes if it is no tensor.
void walk(PyObject* object, const BatchPath& path, int depth, Walk* w) {
  if (object == nullptr || depth > kMaxDepth || w->left <= 0) return;
  if (PyTuple_Check(object) || PyList_Check(object)) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < n && w->left > 0; ++i)
      walk(PySequence_Fast_GET_ITEM(object, i), {&path, i, nullptr}, depth + 1, w);
  } else if (PyDict_Check(object)) {
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(object, &pos, &key, &value)) walk(value, {&path, 0, key}, depth + 1, w);
  } else if (is_tensor_object(object)) {
    --w->left;
    w->visit(object, path, w->data);
  }
}

struct BatchSum {
  std::uint64_t sum = 0;
  std::size_t size_bytes = 0;
};

// A checksum of samples of each tensor, to detect a batch that was written in place or to know one again. Reading whole
// batches would cost more than all else here. Tensors without plain memory on the CPU do not count.
BatchSum sum_of(PyObject* batch) {
  BatchSum sum;
  for_each_tensor(
      batch,
      [](PyObject* t, const BatchPath&, void* data) {
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
        // Stretches at the beginning, at the end and evenly between: what changes a batch in place (normalisation,
        // augmentation) usually changes all of it.
        constexpr std::size_t kStretches = kSumBytes / kSumStretch;
        char sample[kSumBytes];
        for (std::size_t i = 0; i < kStretches; ++i) {
          const std::size_t at = (size_bytes - kSumStretch) / (kStretches - 1) * i;
          std::memcpy(sample + i * kSumStretch, v.data + at, kSumStretch);
        }
        out->sum = base::checksum(sample, kSumBytes, seed);
      },
      &sum);
  return sum;
}

void name_for_trace(PyObject* batch) {
  for_each_tensor(
      batch,
      [](PyObject* t, const BatchPath& path, void*) {
        observe::Tracer::get().name_batch(*THPVariable_Unpack(t).unsafeGetTensorImpl(), path.text());
      },
      nullptr);
}

// A shallow copy, no error left; empty for tuples, which nothing can be taken out of, and for other classes, whose
// copies may run code of the program.
Object copy_of_content(PyObject* batch) {
  Object copy = Object::take(PyDict_CheckExact(batch)   ? PyDict_Copy(batch)
                             : PyList_CheckExact(batch) ? PyList_GetSlice(batch, 0, PyList_GET_SIZE(batch))
                                                        : nullptr);
  if (!copy) PyErr_Clear();
  return copy;
}

// Were elements taken out, put in or exchanged? Compared by identity and order: == would run code of tensors.
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

// The second run must find in the batch what the first one found; a training loop may pop the labels. Elements are the
// same objects, held by `content`.
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
  const Earlier gone = std::exchange(earlier_, Earlier());
}

// An RngState has 8 KB. Those of forgotten events are used again, so that a steady state allocates nothing.
void LoaderLog::spare(std::unique_ptr<RngState> state) {
  if (state && spare_.size() < kMaxSpare) spare_.push_back(std::move(state));
}

// The last batch of a window that is forgotten: a loader that fetches one batch ahead gave the next window's batch
// already then. Only its checksum, indices and generators are kept, and not the batch.
void LoaderLog::keep_last_of(std::vector<LoaderEvent>* old) {
  std::size_t last = old->size();
  while (last > 0 && ((*old)[last - 1].kind != LoaderEvent::kNext || !(*old)[last - 1].grad_mode)) --last;
  if (last-- == 0) return;
  LoaderEvent& e = (*old)[last];
  std::unique_ptr<RngState> before = std::move(last > 0 ? (*old)[last - 1].after : earlier_.after);
  spare(std::move(earlier_.before));
  spare(std::move(earlier_.after));
  earlier_.owner = e.owner.get();
  earlier_.place = e.place;
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
    *origin = {e.owner.get(), e.indices.get(), i > 0 ? events_[i - 1].after.get() : earlier_.after.get(),
               e.after.get()};
    return true;
  }
  if (earlier_.owner == nullptr || earlier_.sum != sum.sum || earlier_.size_bytes != sum.size_bytes) return false;
  for (const LoaderEvent& e : events_) {
    if (e.owner.get() != earlier_.owner || e.kind == LoaderEvent::kIter) continue;
    *origin = {e.owner.get(), earlier_.indices.get(), earlier_.before.get(), earlier_.after.get()};
    return true;
  }
  return false;
}

void LoaderLog::begin_window(std::size_t oldest) {
  // In a second run the events of the first are still to be given again.
  if (replaying_) return;
  const Metered loader(Piece::kLoader);
  window_ = position();
  // Positions count all events ever; `base_` is that of the first one still here.
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

// Null also where the window's batch was fetched in the window before. Borrowed, valid until the next event.
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

// A loader that is asked one batch ahead gave the first batch of this window in the one before, and its last one is of
// the next window, unless the loader has come to its end.
void LoaderLog::used_since(std::size_t position, std::vector<UsedBatch>* batches) const {
  batches->clear();
  const std::size_t first = std::max(position, base_) - base_;
  const PyObject* ahead = nullptr;  // the iterator of the last batch, where that is fetched ahead
  for (std::size_t i = first; i < events_.size(); ++i) {
    const LoaderEvent& e = events_[i];
    if (e.kind == LoaderEvent::kIter || !e.grad_mode) continue;
    if (e.place.is_ahead && ahead != e.owner.get() && !begins_after(first, i)) add_one_before(first, i, batches);
    ahead = e.kind == LoaderEvent::kNext && e.place.is_ahead ? e.owner.get() : nullptr;
    if (e.kind == LoaderEvent::kNext) batches->push_back({e.indices.get(), e.place});
  }
  if (ahead != nullptr) batches->pop_back();
}

// Was the iterator of event i made, or begun again, at event `first` or later?
bool LoaderLog::begins_after(std::size_t first, std::size_t i) const {
  return std::any_of(events_.begin() + static_cast<std::ptrdiff_t>(first),
                     events_.begin() + static_cast<std::ptrdiff_t>(i), [&](const LoaderEvent& e) {
                       return (e.kind == LoaderEvent::kIter ? e.result : e.owner).get() == events_[i].owner.get();
                     });
}

// The last batch before event `first` that the iterator of event i gave.
void LoaderLog::add_one_before(std::size_t first, std::size_t i, std::vector<UsedBatch>* batches) const {
  const PyObject* const iterator = events_[i].owner.get();
  for (std::size_t k = first; k-- > 0;) {
    const LoaderEvent& e = events_[k];
    if (e.kind == LoaderEvent::kNext && e.grad_mode && e.owner.get() == iterator)
      return batches->push_back({e.indices.get(), e.place});
  }
  if (earlier_.owner == iterator && earlier_.place.is_ahead)
    batches->push_back({earlier_.indices.get(), earlier_.place});
}

bool is_unchanged(const LoaderEvent& event) { return sum_of(event.result.get()).sum == event.sum; }

// Not during a second run: its events are those of the first, which are in the list already.
bool LoaderLog::wants() const { return live().on && live().keeps_window_start && !replaying_; }

// Position in events_ from here on; begin_window() does not move them before end_replay().
void LoaderLog::begin_replay(std::size_t position) {
  replaying_ = true;
  position_ = position - base_;
  diverged_ = nullptr;
}

// `why` is a literal, null if the second run asked for everything in the same order.
bool LoaderLog::end_replay(const char** why) {
  replaying_ = false;
  if (diverged_ == nullptr && position_ < events_.size()) diverged_ = "the second run asked for fewer batches";
  *why = diverged_;
  return diverged_ == nullptr;
}

// Gives the next recorded result again, and sets the generators to where they were after it, since
// the loader itself does not run. matched = false: the program has asked for something else. The original method then
// runs, so that the program gets a result, but the second run no longer counts (`diverged_`).
Object LoaderLog::replay(LoaderEvent::Kind kind, PyObject* owner, bool* matched) {
  *matched = false;
  if (position_ >= events_.size()) {
    diverged_ = "the second run asked for more batches";
    return Object();
  }
  LoaderEvent& e = events_[position_];
  const bool fits = e.owner.get() == owner &&
                    (kind == LoaderEvent::kIter ? e.kind == LoaderEvent::kIter : e.kind != LoaderEvent::kIter);
  if (!fits) {
    diverged_ = "the second run used its loaders in another order";
    return Object();
  }
  *matched = true;
  ++position_;
  const bool is_batch = e.kind == LoaderEvent::kNext;
  if (is_batch) put_content_back(e.result.get(), e.content.get());
  if (is_batch && sum_of(e.result.get()).sum != e.sum) diverged_ = "a batch was changed in place";
  restore_rng(*e.after);
  if (is_batch && observe::Tracer::get().on()) name_for_trace(e.result.get());
  return e.result;  // empty without an error set: StopIteration
}

Object LoaderLog::given_again(LoaderEvent::Kind kind, PyObject* owner, bool* matched) {
  Object result;
  if (!as_guest([&] { result = replay(kind, owner, matched); }))
    diverged_ = "a batch of the first run could not be given again";
  return result;
}

// The original method is called outside of as_guest(): its errors are the program's and pass through unchanged.
PyObject* LoaderLog::iter(PyObject* loader) {
  if (replaying_) {
    bool matched = false;
    Object result = given_again(LoaderEvent::kIter, loader, &matched);
    if (matched) return result.release();
  }
  PyObject* result;
  {
    const Unrecorded unrecorded;
    result = PyObject_CallOneArg(original_iter.get(), loader);
  }
  if (result != nullptr && wants() && events_.size() < kMaxEvents) {
    const Metered noted(Piece::kLoader);
    as_guest([&] {
      events_.push_back({LoaderEvent::kIter, Object::share(loader), Object::share(result), rng_now(), 0, 0});
      note_dataset(loader, result);
    });
  }
  return result;
}

// Runs inside next() for an iterator without workers, and ahead of it for one with workers.
PyObject* LoaderLog::next_index(PyObject* iterator) {
  PyObject* index = PyObject_CallOneArg(original_next_index.get(), iterator);
  if (index == nullptr || !wants()) return index;
  const Metered noted(Piece::kLoader);
  as_guest([&] { keep_indices(iterator, index); });
  return index;
}

// Order: the event first, as batch_given() and the listeners look it up. A batch fetched without gradients belongs to
// an evaluation, which is no part of a step.
void LoaderLog::note_next(PyObject* iterator, PyObject* batch) {
  if (batch == nullptr) {
    events_.push_back(
        {LoaderEvent::kStop, Object::share(iterator), Object(), rng_now(), 0, 0, c10::GradMode::is_enabled()});
    events_.back().place = place_of(iterator);
    return;
  }
  const BatchSum sum = sum_of(batch);
  events_.push_back({LoaderEvent::kNext, Object::share(iterator), Object::share(batch), rng_now(), sum.sum,
                     sum.size_bytes, c10::GradMode::is_enabled()});
  size_bytes_ += sum.size_bytes;
  events_.back().content = copy_of_content(batch);
  events_.back().place = place_of(iterator);
  events_.back().indices = take_indices(iterator, &events_.back().place.worker);
  batch_given();
  if (observe::Tracer::get().on()) name_for_trace(batch);
  if (events_.back().grad_mode) listeners().training_batch_given();
}

PyObject* LoaderLog::next(PyObject* iterator) {
  if (replaying_) {
    bool matched = false;
    Object result = given_again(LoaderEvent::kNext, iterator, &matched);
    if (matched) {
      if (!result) PyErr_SetNone(PyExc_StopIteration);
      return result.release();
    }
  }
  PyObject* result;
  {
    const Unrecorded unrecorded;
    observe::Tracer::PhaseGuard phase(record::Phase::kData);
    result = PyObject_CallOneArg(original_next.get(), iterator);
  }
  if (!wants() || events_.size() >= kMaxEvents) return result;
  const Metered noted(Piece::kLoader);
  if (result == nullptr && !PyErr_ExceptionMatches(PyExc_StopIteration)) return result;
  const SavedError saved;  // StopIteration is set where the loader has ended
  as_guest([&] { note_next(iterator, result); });
  return result;
}

}  // namespace finitude::bindings
