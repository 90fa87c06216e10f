// DataLoader iterators: what they gave in this window is kept (batch by reference), and can be given once more.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "base/immortal.h"
#include "pyhost/object_python.h"
#include "rewind/loader_datasets_python.h"
#include "rewind/snapshot_torch.h"

namespace finitude::bindings {

struct LoaderEvent {
  enum Kind { kIter, kNext, kStop } kind;
  Object owner;                     // the loader (kIter) or the iterator
  Object result;                    // the iterator or the batch; empty for kStop
  std::unique_ptr<RngState> after;  // generators right after it
  std::uint64_t sum;                // checksum over the first 4 KB of each of the batch's tensors
  std::size_t size_bytes;           // of the batch's tensors
  bool grad_mode = true;            // when it was fetched: evaluation loops run without
  Object content;  // of a batch that is a dict or a list, a copy of it (not of what is in it): programs pop parts of it
  Object indices;  // a tuple or an int, the samples of the data set that the batch is made of; may be empty
  BatchPlace place;
};

// A batch that a step has used. Borrowed, valid until the log moves on.
struct UsedBatch {
  PyObject* indices = nullptr;  // may be null
  BatchPlace place;
};

// Where a batch came from: all borrowed, and valid until the log moves on.
struct BatchOrigin {
  PyObject* iterator = nullptr;
  PyObject* indices = nullptr;       // may be null
  const RngState* before = nullptr;  // generators when the loader was asked before; null: not known
  const RngState* after = nullptr;
};

class LoaderLog {
 public:
  void forget();  // everything
  // A new window begins here; what lies before `oldest`, a position, belongs to no window that is still wanted.
  void begin_window(std::size_t oldest);
  std::size_t position() const { return base_ + events_.size(); }
  std::size_t size_bytes() const { return size_bytes_; }  // of the batches that are held
  void begin_replay(std::size_t position);
  // True if everything was asked for again in the same order and no batch changed in place meanwhile.
  bool end_replay(const char** why);
  bool replaying() const { return replaying_; }
  // The generators right after the last batch of the window that began last; null where none was fetched.
  const RngState* last_fetch() const;
  std::size_t size() const { return events_.size(); }
  // Batches for training that were given from there on. Valid until the next one is.
  std::vector<const LoaderEvent*> batches_since(std::size_t position) const;
  const std::vector<LoaderEvent>& events() const { return events_; }
  // Batches for training that were used from there on, in order: those that were given, but for one that is fetched
  // ahead.
  void used_since(std::size_t position, std::vector<UsedBatch>* batches) const;
  // Of a batch of this window, or the last of the one before, known again by its values: a loader that is asked one
  // batch ahead gave this window's in the one before.
  bool origin_of(PyObject* batch, BatchOrigin* origin) const;

  PyObject* iter(PyObject* loader);          // replaces DataLoader.__iter__
  PyObject* next(PyObject* iterator);        // replaces _BaseDataLoaderIter.__next__
  PyObject* next_index(PyObject* iterator);  // replaces _BaseDataLoaderIter._next_index
  Object original_iter, original_next, original_next_index;

 private:
  bool wants() const;                                   // is a batch fetched now noted
  void note_next(PyObject* iterator, PyObject* batch);  // batch null: it has no more
  Object replay(LoaderEvent::Kind kind, PyObject* owner, bool* matched);
  Object given_again(LoaderEvent::Kind kind, PyObject* owner, bool* matched);  // replay; throws nothing
  std::unique_ptr<RngState> rng_now();  // into memory of an event that was forgotten, where there is some
  void spare(std::unique_ptr<RngState> state);
  // The last batch for training of the windows that are forgotten, without what it held.
  struct Earlier {
    const PyObject* owner = nullptr;  // an address: an event of this window holds it, or it is not looked for
    Object indices;
    BatchPlace place;
    std::uint64_t sum = 0;
    std::size_t size_bytes = 0;
    std::unique_ptr<RngState> before, after;
  };
  void keep_last_of(std::vector<LoaderEvent>* old);
  bool begins_after(std::size_t first, std::size_t i) const;
  void add_one_before(std::size_t first, std::size_t i, std::vector<UsedBatch>* batches) const;
  Earlier earlier_;
  std::vector<LoaderEvent> events_;
  std::vector<std::unique_ptr<RngState>> spare_;
  std::size_t base_ = 0;    // position of the first event
  std::size_t window_ = 0;  // position where the last window began
  std::size_t size_bytes_ = 0;
  std::size_t position_ = 0;  // of the next event to give again, in events_
  bool replaying_ = false;
  const char* diverged_ = nullptr;
};

inline base::Immortal<LoaderLog> the_loader_log;
inline LoaderLog& loader_log() { return *the_loader_log; }
// Is the batch as the loader gave it? Judged by a sample of each tensor.
bool is_unchanged(const LoaderEvent& event);
// The place of something in a batch: "batch[0][image]" is made only for who asks.
struct BatchPath {
  const BatchPath* outer = nullptr;
  Py_ssize_t index = 0;
  PyObject* key = nullptr;  // of a dict; else it is the index
  std::string text() const;
};

// Tensors in a batch of tuples, lists and dicts; bounded depth and number.
void for_each_tensor(PyObject* batch, void (*visit)(PyObject* tensor, const BatchPath& path, void* data), void* data);

}  // namespace finitude::bindings
