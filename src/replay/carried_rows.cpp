#include "replay/carried_rows.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::StorageId;
using capture::Tape;
using capture::TensorRef;

constexpr std::size_t kMostTaken = 32;

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, name) != names.end();
}

template <std::size_t N>
bool starts_with_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::ranges::any_of(names, [&](std::string_view start) { return name.starts_with(start); });
}

std::string_view bare_name(std::string_view name) {
  if (const auto colons = name.rfind("::"); colons != std::string_view::npos) name.remove_prefix(colons + 2);
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// Which memory belongs to which row: the byte at `begin + o` to number (o / stride) % rows. Views need no entry of
// their own.
struct Layout {
  std::int64_t begin = 0, stride = 0;
};

// A dimension of a tensor whose index i belongs to row (i / per_row) % rows.
struct Dimension {
  std::size_t at = 0;
  std::int64_t per_row = 1;
};

std::int64_t bytes_of(const TensorRef& t) {
  auto n = static_cast<std::int64_t>(capture::item_bytes(t.dtype));
  for (const std::int64_t size : t.sizes) n *= size;
  return n;
}

class Carried {
 public:
  Carried(const Tape& tape, std::int64_t rows) : tape_(tape), rows_(rows) {}

  void begin(const BatchInput& input) {
    layouts_.insert_or_assign(
        input.storage, Layout{static_cast<std::int64_t>(input.begin), static_cast<std::int64_t>(input.row_bytes)});
  }

  bool touches(const Entry& entry) const {
    bool any = false;
    const auto look = [&](const TensorRef& t) { any = any || dimension_of(t).has_value(); };
    capture::for_each_tensor(entry.args, look);
    capture::for_each_tensor(entry.results, look);
    return any;
  }

  // Of the elementwise call: in which dimension of what its arguments are broadcast to they have the rows; nothing
  // where in none, or in several.
  std::optional<std::size_t> place_of_rows(const Entry& entry) const {
    std::size_t rank = 0;
    std::optional<std::size_t> place;
    bool several = false;
    const auto widen = [&](const TensorRef& t) { rank = std::max(rank, t.sizes.size()); };
    capture::for_each_tensor(entry.args, widen);
    capture::for_each_tensor(entry.args, [&](const TensorRef& t) {
      const auto dimension = dimension_of(t);
      if (!dimension || dimension->per_row != 1) return;
      const std::size_t at = dimension->at + rank - t.sizes.size();
      several = several || (place && *place != at);
      place = at;
    });
    return several ? std::nullopt : place;
  }

  // What the call takes out of the rows, or reads of them alone, as a batch of its own; the number of its rows.
  void find_taken(std::size_t index, const Entry& entry, std::vector<std::pair<std::int64_t, BatchInput>>* out) const {
    const auto add = [&](const TensorRef& t, std::size_t from) {
      const auto item = static_cast<std::int64_t>(capture::item_bytes(t.dtype));
      BatchInput input;
      input.storage = t.storage;
      input.begin = static_cast<std::size_t>(t.offset * item);
      input.row_bytes = static_cast<std::size_t>(t.strides[0] * item);
      input.read_at = from;
      out->emplace_back(t.sizes[0], input);
    };
    const bool takes = entry.number < tape_.operators.size() &&
                       bare_name(tape_.operators[entry.number].name).starts_with("index") && !entry.args.empty();
    if (takes && entry.args[0].kind == capture::Value::kTensor) {
      const TensorRef& all = entry.args[0].tensors.at(0);
      const auto dimension = dimension_of(all);
      capture::for_each_tensor(entry.results, [&](const TensorRef& t) {
        if (dimension && dimension->at == 0 && dimension->per_row == 1 && t.storage != all.storage &&
            t.sizes.size() == all.sizes.size() && t.sizes[0] > 1)
          add(t, index + 1);
      });
    }
    capture::for_each_tensor(entry.args, [&](const TensorRef& t) {
      const auto found = layouts_.find(t.storage);
      if (found == layouts_.end() || t.sizes.empty() || t.sizes[0] < 2 || t.sizes[0] >= rows_) return;
      if (t.strides[0] * static_cast<std::int64_t>(capture::item_bytes(t.dtype)) == found->second.stride) add(t, index);
    });
  }

  void call(const Entry& entry) {
    std::unordered_map<StorageId, Layout> made;
    for (std::size_t arg = 0; arg < entry.args.size(); ++arg) {
      capture::for_each_tensor(entry.args[arg], [&](const TensorRef& in) {
        const auto dimension = dimension_of(in);
        if (!dimension) return;
        capture::for_each_tensor(entry.results, [&](const TensorRef& out) {
          if (!keeps(entry, arg, in, *dimension, out) || is_part(entry, out)) return;
          const std::int64_t step =
              out.strides[dimension->at] * static_cast<std::int64_t>(capture::item_bytes(out.dtype));
          if (step > 0)
            made.try_emplace(out.storage, Layout{out.offset * static_cast<std::int64_t>(capture::item_bytes(out.dtype)),
                                                 step * dimension->per_row});
        });
      });
    }
    for (const auto& [storage, layout] : made) layouts_.insert_or_assign(storage, layout);
  }

 private:
  std::optional<Dimension> dimension_of(const TensorRef& t) const {
    const auto found = layouts_.find(t.storage);
    if (found == layouts_.end()) return std::nullopt;
    const auto [begin, stride] = found->second;
    const auto item = static_cast<std::int64_t>(capture::item_bytes(t.dtype));
    const std::int64_t from = t.offset * item - begin;
    if (from < 0 || from % (rows_ * stride) >= stride) return std::nullopt;  // it does not begin in the first row
    for (std::size_t d = 0; d < t.sizes.size(); ++d) {
      const std::int64_t step = t.strides[d] * item;
      if (step <= 0 || stride % step != 0) continue;
      const std::int64_t per_row = stride / step;
      if (t.sizes[d] >= rows_ * per_row && t.sizes[d] % (rows_ * per_row) == 0) return Dimension{d, per_row};
    }
    return std::nullopt;
  }

  // A write into a part of something larger: the rows are features there, or one row of many.
  bool is_part(const Entry& entry, const TensorRef& out) const {
    bool writes = false;
    capture::for_each_tensor(entry.args, [&](const TensorRef& t) { writes = writes || t.storage == out.storage; });
    if (!writes || out.storage >= tape_.storages.size() || layouts_.contains(out.storage)) return false;
    return static_cast<std::uint64_t>(bytes_of(out)) < tape_.storages[out.storage].size_bytes;
  }

  // Is the result's dimension of the same number that of the argument, index by index?
  bool keeps(const Entry& entry, std::size_t arg, const TensorRef& in, Dimension dimension,
             const TensorRef& out) const {
    constexpr std::array<std::string_view, 6> kOfFirst = {"mm", "mv", "matmul", "linear", "gather", "index_select"};
    constexpr std::array<std::string_view, 4> kOfSecond = {"addmm", "addmv", "embedding", "index"};
    constexpr std::array<std::string_view, 8> kMoves = {"flip",    "roll",  "sort", "msort",
                                                        "argsort", "rot90", "topk", "dot"};
    constexpr std::array<std::string_view, 6> kPuts = {"index_put",  "index_copy", "index_add",
                                                       "index_fill", "scatter",    "masked_scatter"};
    constexpr std::array<std::string_view, 5> kConvolutions = {"conv", "_conv", "mkldnn", "thnn_conv", "slow_conv"};
    if (out.storage == capture::kNoStorage || entry.number >= tape_.operators.size()) return false;
    const std::size_t d = dimension.at;
    if (d >= out.sizes.size() || out.sizes[d] != in.sizes[d]) return false;
    const std::string_view name = bare_name(tape_.operators[entry.number].name);
    if (is_one_of(name, kMoves)) return false;
    if (starts_with_one_of(name, kPuts)) return arg == 0 && out.sizes.size() == in.sizes.size();
    const bool looks_up = name == "embedding" || name == "index";
    if (is_one_of(name, kOfSecond))
      return arg == 1 && d == 0 && (looks_up || out.sizes.size() == in.sizes.size() || name == "addmv");
    if (is_one_of(name, kOfFirst)) {
      const bool along =
          (name == "gather" || name == "index_select") && entry.args.size() > 1 && entry.args[1].number == 0;
      return arg == 0 && d == 0 && !along;
    }
    if (starts_with_one_of(name, kConvolutions)) return arg == 0 && d == 0;
    if (name == "bmm" || name == "baddbmm") return d == 0;
    if (out.sizes.size() > in.sizes.size()) return false;  // every row of something else meets it
    return out.sizes.size() == in.sizes.size() || d == 0;
  }

  const Tape& tape_;
  const std::int64_t rows_;
  std::unordered_map<StorageId, Layout> layouts_;
};

using Taken = std::vector<std::pair<std::int64_t, BatchInput>>;

bool reach(const Tape& tape, const std::vector<BatchInput>& inputs, std::int64_t rows, std::size_t entry,
           Taken* taken) {
  Carried carried(tape, rows);
  for (std::size_t i = 0; i <= entry; ++i) {
    for (const BatchInput& input : inputs) {
      if (input.read_at == i && input.row_bytes != 0) carried.begin(input);
    }
    const Entry& call = tape.entries[i];
    if (call.kind != Entry::kCall) continue;
    if (i == entry && carried.touches(call)) return true;
    if (taken != nullptr && taken->size() < kMostTaken) carried.find_taken(i, call, taken);
    carried.call(call);
    if (i == entry) return carried.touches(call);
  }
  return false;
}

// Whether what the call `entry` gave is written into one of the inputs before that is read: the program still makes the
// batch then.
bool goes_into(const Tape& tape, const std::vector<BatchInput>& inputs, std::size_t entry) {
  std::unordered_set<StorageId> born;
  std::size_t last = 0;
  for (const BatchInput& input : inputs) last = std::max(last, input.read_at);
  for (std::size_t i = entry; i < std::min(last, tape.entries.size()); ++i) {
    const Entry& call = tape.entries[i];
    bool reads = i == entry;
    capture::for_each_tensor(call.args, [&](const TensorRef& t) {
      reads = reads || (t.storage != capture::kNoStorage && born.contains(t.storage));
    });
    if (!reads) continue;
    capture::for_each_tensor(call.results, [&](const TensorRef& t) { born.insert(t.storage); });
    if (std::ranges::any_of(inputs,
                            [&](const BatchInput& input) { return i < input.read_at && born.contains(input.storage); }))
      return true;
  }
  return false;
}

bool is_elementwise(const Tape& tape, const Entry& entry) {
  constexpr std::array<std::string_view, 27> kNames = {"add",
                                                       "addcdiv",
                                                       "addcmul",
                                                       "atan2",
                                                       "copy",
                                                       "div",
                                                       "eq",
                                                       "fmod",
                                                       "ge",
                                                       "gt",
                                                       "hypot",
                                                       "huber_loss",
                                                       "le",
                                                       "lerp",
                                                       "lt",
                                                       "masked_fill",
                                                       "maximum",
                                                       "minimum",
                                                       "mse_loss",
                                                       "mul",
                                                       "ne",
                                                       "pow",
                                                       "sub",
                                                       "smooth_l1_loss",
                                                       "where",
                                                       "binary_cross_entropy",
                                                       "binary_cross_entropy_with_logits"};
  return entry.kind == Entry::kCall && entry.number < tape.operators.size() &&
         is_one_of(bare_name(tape.operators[entry.number].name), kNames);
}

std::size_t bytes_of_rows(const BatchInput& input, std::int64_t rows) {
  return input.row_bytes * static_cast<std::size_t>(rows);
}

// The first call that both go into says it.
bool lies_crosswise(const Tape& tape, const BatchInput& one, std::int64_t rows, const BatchInput& other,
                    std::int64_t other_rows) {
  Carried mine(tape, rows), theirs(tape, other_rows);
  for (std::size_t i = 0; i < tape.entries.size() && !tape.entries[i].of_backward; ++i) {
    if (one.read_at == i) mine.begin(one);
    if (other.read_at == i) theirs.begin(other);
    const Entry& call = tape.entries[i];
    if (call.kind != Entry::kCall) continue;
    if (is_elementwise(tape, call)) {
      const auto here = mine.place_of_rows(call), there = theirs.place_of_rows(call);
      if (here && there) return *there < *here;
    }
    mine.call(call);
    theirs.call(call);
  }
  return false;
}

}  // namespace

std::vector<bool> lie_crosswise(const Tape& tape, const std::vector<BatchInput>& inputs, std::int64_t rows,
                                const std::vector<std::pair<std::int64_t, BatchInput>>& others) {
  Taken all = others;
  for (const auto& [count, other] : others) {
    Carried carried(tape, count);
    for (std::size_t i = 0; i < tape.entries.size() && !tape.entries[i].of_backward && all.size() < kMostTaken; ++i) {
      if (other.read_at == i) carried.begin(other);
      if (tape.entries[i].kind != Entry::kCall) continue;
      carried.find_taken(i, tape.entries[i], &all);
      carried.call(tape.entries[i]);
    }
  }
  std::vector<bool> out(inputs.size(), false);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].loaded) continue;
    out[i] = std::ranges::any_of(all, [&](const auto& other) {
      return other.second.storage != inputs[i].storage &&
             (other.second.loaded || bytes_of_rows(other.second, other.first) >= bytes_of_rows(inputs[i], rows)) &&
             lies_crosswise(tape, inputs[i], rows, other.second, other.first);
    });
  }
  return out;
}

Reach rows_reach(const Tape& tape, const std::vector<BatchInput>& inputs, std::int64_t rows, std::size_t entry) {
  Taken taken;
  if (rows < 2 || entry >= tape.entries.size()) return Reach::kNot;
  if (goes_into(tape, inputs, entry) || reach(tape, inputs, rows, entry, &taken)) return Reach::kRows;
  for (const auto& [count, input] : taken) {
    if (reach(tape, {input}, count, entry, nullptr)) return Reach::kTaken;
  }
  return Reach::kNot;
}

}  // namespace finitude::replay
