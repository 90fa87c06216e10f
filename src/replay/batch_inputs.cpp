#include "replay/batch_inputs.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "record/allocating_ops.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::StorageId;
using capture::Tape;
using capture::TensorRef;
using capture::Value;

constexpr const char* kBatch = "batch";  // python/finitude/program/step_start_state.py

// Rows one after the other, each element once.
bool is_row_major(const TensorRef& t) {
  std::int64_t expected = 1;
  for (std::size_t d = t.sizes.size(); d-- > 0; expected *= std::max<std::int64_t>(t.sizes[d], 1)) {
    if (t.sizes[d] > 1 && t.strides[d] != expected) return false;
  }
  return true;
}

std::int64_t elements(const TensorRef& t) {
  std::int64_t n = 1;
  for (const std::int64_t size : t.sizes) n *= size;
  return n;
}

// Bytes from one to the next of `rows` pieces that the tensor's memory falls into; 0 where it does not.
std::size_t row_bytes(const TensorRef& t, std::int64_t rows) {
  const std::int64_t n = elements(t);
  if (rows < 2 || n <= 0 || n % rows != 0) return 0;
  std::int64_t last = 0;  // of its elements in memory
  bool outermost = false;
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    last += (t.sizes[d] - 1) * t.strides[d];
    outermost |= t.sizes[d] == rows && t.strides[d] * rows == n;
  }
  const bool folded = is_row_major(t) && !t.sizes.empty() && t.sizes[0] % rows == 0;
  return last + 1 == n && (outermost || folded) ? static_cast<std::size_t>(n / rows) * capture::item_bytes(t.dtype) : 0;
}

// A sample as the operator reads it: a linear layer has the steps of its sequences folded into the rows.
std::vector<std::int64_t> row_sizes(const TensorRef& t, std::int64_t rows) {
  if (!is_row_major(t) || t.sizes.empty() || t.sizes[0] % rows != 0) return {elements(t) / rows};
  std::vector<std::int64_t> out(t.sizes.begin() + 1, t.sizes.end());
  if (t.sizes[0] != rows) out.insert(out.begin(), t.sizes[0] / rows);
  return out;
}

bool has_rows(const TensorRef& t, std::int64_t rows, std::uint64_t storage_bytes, BatchInput* out) {
  const std::size_t row = row_bytes(t, rows);
  const std::size_t begin = static_cast<std::size_t>(t.offset) * capture::item_bytes(t.dtype);
  if (row == 0 || begin + row * static_cast<std::size_t>(rows) > storage_bytes) return false;
  out->storage = t.storage;
  out->begin = begin;
  out->row_bytes = row;
  out->item_bytes = capture::item_bytes(t.dtype);
  out->row_sizes = row_sizes(t, rows);
  return true;
}

bool is_named(const capture::Storage& storage) { return !storage.kind.empty() && storage.kind != kBatch; }

class Search {
 public:
  Search(const Tape& tape, const record::Trace* trace) : tape_(tape), trace_(trace), making_(tape.storages.size()) {
    if (trace != nullptr) find_first_uses();
  }

  std::map<std::int64_t, std::vector<BatchInput>> run() {
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      const Entry& entry = tape_.entries[i];
      if (entry.of_backward) backward_ = true;
      if (entry.kind == Entry::kFill) begin_to_make(entry.number, nullptr);
      if (entry.kind == Entry::kCall) call(i, entry);
    }
    // With one row of a permutation replaced, another sample is skipped: it is no sample where those are known. What
    // takes as many rows as there are is one; with a loader's batch, any index.
    for (auto& [rows, inputs] : found_) {
      const bool any_loaded = std::ranges::any_of(inputs, &BatchInput::loaded);
      const bool any_rows = std::ranges::any_of(inputs, [](const BatchInput& input) { return !input.as_index; });
      std::erase_if(inputs, [&](const BatchInput& input) {
        return input.as_index && !input.loaded &&
               (any_loaded || (any_rows && permuting_.count({input.read_at, input.arg, input.item}) != 0));
      });
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
    if (storage.origin != capture::Storage::kProduced || is_named(storage)) return is_named(storage);
    return !making_[t.storage].begun;
  }

  bool is_of_optimizer(const Entry& entry) const {
    return trace_ != nullptr && entry.traced < trace_->ops.size() &&
           trace_->ops[entry.traced].phase == record::Phase::kOptimizer;
  }

  bool takes_by_index(const Entry& entry) const {
    if (entry.number >= tape_.operators.size()) return false;
    const std::string& name = tape_.operators[entry.number].name;
    return name.starts_with("aten::index") || name.starts_with("aten::take");
  }

  // Takes as many rows of something as it has, along dimension 0: x[torch.randperm(len(x))].
  bool permutes_rows(const Entry& entry, std::size_t arg, const TensorRef& index) const {
    if (arg == 0 || !takes_by_index(entry) || entry.args[0].tensors.empty() || index.sizes.size() != 1) return false;
    const TensorRef& of = entry.args[0].tensors[0];
    const bool first = arg == 1 || (entry.args[1].kind == Value::kInt && entry.args[1].number == 0);
    return first && !of.sizes.empty() && of.sizes[0] == index.sizes[0];
  }

  // Sums what has the same index (index_add_, scatter_reduce_ along dimension 0): the rows of the result are groups.
  bool gathers_groups(const Entry& entry) const {
    if (entry.number >= tape_.operators.size()) return false;
    const std::string& name = tape_.operators[entry.number].name;
    const bool sums = name.starts_with("aten::index_add") || name.starts_with("aten::index_reduce") ||
                      name.starts_with("aten::scatter_add") || name.starts_with("aten::scatter_reduce");
    if (!sums || entry.args.size() < 2 || entry.args[1].kind != Value::kInt || entry.args[0].tensors.empty())
      return false;
    const auto rank = static_cast<std::int64_t>(entry.args[0].tensors[0].sizes.size());
    return entry.args[1].number == 0 || entry.args[1].number == -rank;
  }

  // The rows of an identity matrix are no samples.
  bool makes_identity(const Entry& entry) const {
    return entry.number < tape_.operators.size() && tape_.operators[entry.number].name == "aten::eye";
  }

  void call(std::size_t index, const Entry& entry) {
    if (is_of_optimizer(entry)) return;  // its state begins as zeros that come from nothing, which are no samples
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
        input.as_index = arg > 0 && takes_by_index(entry);
        if (permutes_rows(entry, arg, t)) permuting_.insert({index, arg, position});
        if (is_input(t) || written.count(t.storage) == 0) given(t, entry, input);
        if (written.count(t.storage) == 0) made(t, input);
      };
      capture::for_each_tensor(entry.args[arg], use);
    }
    const bool from_nothing =
        !any_tensor || (entry.number < tape_.operators.size() && record::allocates(tape_.operators[entry.number].name));
    capture::for_each_tensor(entry.results, [&](const TensorRef& t) {
      if (!is_known(t)) return;
      if (making_[t.storage].begun && (any_derived || gathers_groups(entry))) making_[t.storage].over = true;
      if (makes_identity(entry)) return;
      if (from_nothing && !backward_) begin_to_make(t.storage, &t);
    });
  }

  // How many rows the memory that `entry` reads as `t` had when the program first had it as a tensor.
  std::int64_t rows_first(const TensorRef& t, const Entry& entry) const {
    const std::int64_t rows = t.sizes.empty() ? 0 : t.sizes[0];
    if (trace_ == nullptr || entry.traced >= trace_->ops.size()) return rows;
    // The trace counts bytes from elsewhere than the tape: only the shape says which of the arguments it is.
    const auto& uses = trace_->ops[entry.traced].inputs;
    const auto use = std::find_if(uses.begin(), uses.end(), [&](const record::TensorUse& u) {
      return u.shape == t.sizes && u.storage != record::kNone;
    });
    if (use == uses.end()) return rows;
    const auto first = first_uses_.find({use->storage, use->begin, use->end});
    return first != first_uses_.end() && first->second.op <= entry.traced ? first->second.rows : rows;
  }

  void find_first_uses() {
    for (record::OpId id = 0; id < trace_->ops.size(); ++id) {
      for (const auto* list : {&trace_->ops[id].inputs, &trace_->ops[id].outputs}) {
        for (const record::TensorUse& u : *list) {
          if (u.dense && !u.shape.empty() && u.shape[0] > 1)
            first_uses_.try_emplace({u.storage, u.begin, u.end}, FirstUse{id, u.shape[0]});
        }
      }
    }
  }

  bool is_input(const TensorRef& t) const { return tape_.storages[t.storage].origin == capture::Storage::kInput; }

  // What the step was given, or a batch that it put together itself, as it does in a second process: its rows are the
  // samples, whatever it was made of.
  void given(const TensorRef& t, const Entry& entry, BatchInput input) {
    const capture::Storage& storage = tape_.storages[t.storage];
    input.loaded = storage.kind == kBatch;
    if (is_named(storage) || !(is_input(t) || input.loaded) || given_.count(t.storage) != 0) return;
    const std::int64_t rows = rows_first(t, entry);
    if (!has_rows(t, rows, is_input(t) ? storage.bytes.size() : storage.size_bytes, &input)) return;
    given_.insert(t.storage);
    found_[rows].push_back(input);
  }

  void made(const TensorRef& t, BatchInput input) {
    Making& making = making_[t.storage];
    if (!making.begun || making.over || backward_ || given_.count(t.storage) != 0) return;
    making.over = true;
    if (is_named(tape_.storages[t.storage])) return;  // weights, where the program begins with this step
    const TensorRef& whole = making.whole.sizes.empty() ? t : making.whole;
    const std::int64_t rows = whole.sizes.empty() ? 0 : whole.sizes[0];
    if (has_rows(whole, rows, tape_.storages[t.storage].size_bytes, &input)) found_[rows].push_back(input);
  }

  const Tape& tape_;
  const record::Trace* const trace_;
  struct FirstUse {
    record::OpId op = 0;
    std::int64_t rows = 0;
  };
  std::map<std::tuple<record::StorageId, std::int64_t, std::int64_t>, FirstUse>
      first_uses_;              // by the bytes of a storage; of rows, and all of them
  std::vector<Making> making_;  // by storage
  std::set<StorageId> given_;
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> permuting_;  // entry, argument, position in it
  std::map<std::int64_t, std::vector<BatchInput>> found_;
  bool backward_ = false;
};

}  // namespace

std::map<std::int64_t, std::vector<BatchInput>> batch_inputs(const Tape& tape, const record::Trace* trace) {
  return Search(tape, trace).run();
}

}  // namespace finitude::replay
