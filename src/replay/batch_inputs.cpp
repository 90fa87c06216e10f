#include "replay/batch_inputs.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "record/allocating_ops.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::StorageId;
using capture::Tape;
using capture::TensorRef;
using capture::Value;

// Rows one after the other, each element once.
bool is_row_major(const TensorRef& t) {
  std::int64_t expected = 1;
  for (std::size_t d = t.sizes.size(); d-- > 0; expected *= std::max<std::int64_t>(t.sizes[d], 1)) {
    if (t.sizes[d] > 1 && t.strides[d] != expected) return false;
  }
  return true;
}

bool has_rows(const TensorRef& t, std::uint64_t storage_bytes, BatchInput* out) {
  const std::size_t item = capture::item_bytes(t.dtype);
  if (t.sizes.empty() || t.sizes[0] < 2 || item == 0 || !is_row_major(t)) return false;
  std::size_t row = item;
  for (std::size_t d = 1; d < t.sizes.size(); ++d) row *= static_cast<std::size_t>(t.sizes[d]);
  const std::size_t begin = static_cast<std::size_t>(t.offset) * item;
  if (row == 0 || begin + row * static_cast<std::size_t>(t.sizes[0]) > storage_bytes) return false;
  out->storage = t.storage;
  out->begin = begin;
  out->row_bytes = row;
  return true;
}

class Search {
 public:
  explicit Search(const Tape& tape) : tape_(tape), making_(tape.storages.size()) {}

  std::map<std::int64_t, std::vector<BatchInput>> run() {
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      const Entry& entry = tape_.entries[i];
      if (entry.of_backward) backward_ = true;
      if (entry.kind == Entry::kFill) begin_to_make(entry.number, nullptr);
      if (entry.kind == Entry::kCall) call(i, entry);
    }
    return std::move(found_);
  }

 private:
  // How far the step has come with a tensor of its own.
  struct Making {
    bool begun = false, over = false;
    TensorRef whole;  // as it was first handed out
  };

  bool is_known(const TensorRef& t) const { return t.storage < tape_.storages.size(); }

  void begin_to_make(StorageId storage, const TensorRef* whole) {
    if (storage >= making_.size() || tape_.storages[storage].origin != capture::Storage::kProduced) return;
    Making& making = making_[storage];
    if (making.begun && !making.whole.sizes.empty()) return;
    making.begun = true;
    if (whole != nullptr) making.whole = *whole;
  }

  // Computed from something that is none of the step's own making.
  bool is_derived(const TensorRef& t) const {
    if (!is_known(t)) return false;  // a constant
    const capture::Storage& storage = tape_.storages[t.storage];
    if (storage.origin != capture::Storage::kProduced) return !storage.kind.empty();
    return !making_[t.storage].begun;
  }

  void call(std::size_t index, const Entry& entry) {
    std::set<StorageId> written;
    capture::for_each_tensor(entry.results, [&](const TensorRef& t) { written.insert(t.storage); });
    bool any_tensor = false, any_derived = false;
    for (std::size_t arg = 0; arg < entry.args.size(); ++arg) {
      std::size_t item = 0;
      const auto use = [&](const TensorRef& t) {
        const std::size_t position = item++;
        any_tensor |= is_known(t);
        any_derived |= is_derived(t);
        if (!is_known(t) || entry.args[arg].kind == Value::kSparse) return;
        BatchInput input;
        input.read_at = index;
        input.arg = arg;
        input.item = position;
        if (tape_.storages[t.storage].origin == capture::Storage::kInput) given(t, input);
        if (written.count(t.storage) == 0) made(t, input);
      };
      capture::for_each_tensor(entry.args[arg], use);
    }
    const bool from_nothing = !any_tensor || (entry.number < tape_.operators.size() && record::allocates(tape_.operators[entry.number].name));
    capture::for_each_tensor(entry.results, [&](const TensorRef& t) {
      if (!is_known(t)) return;
      if (making_[t.storage].begun && any_derived) making_[t.storage].over = true;
      if (from_nothing && !backward_) begin_to_make(t.storage, &t);
    });
  }

  void given(const TensorRef& t, BatchInput input) {
    const capture::Storage& storage = tape_.storages[t.storage];
    if (storage.kind.empty() && has_rows(t, storage.bytes.size(), &input) && given_.insert(t.storage).second)
      found_[t.sizes[0]].push_back(input);
  }

  void made(const TensorRef& t, BatchInput input) {
    Making& making = making_[t.storage];
    if (!making.begun || making.over || backward_) return;
    making.over = true;
    const TensorRef& whole = making.whole.sizes.empty() ? t : making.whole;
    if (has_rows(whole, tape_.storages[t.storage].size_bytes, &input)) found_[whole.sizes[0]].push_back(input);
  }

  const Tape& tape_;
  std::vector<Making> making_;  // by storage
  std::set<StorageId> given_;
  std::map<std::int64_t, std::vector<BatchInput>> found_;
  bool backward_ = false;
};

}  // namespace

std::map<std::int64_t, std::vector<BatchInput>> batch_inputs(const Tape& tape) { return Search(tape).run(); }

}  // namespace finitude::replay
