// Dimension 0 is followed forward through the step, for each view of each memory: is there anything of the data in it,
// and is it still the dimension that it was there?
#include "locate/batch_rows.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::Op;
using record::OpId;
using record::Origin;
using record::TensorUse;

constexpr OpId kMostOps = 1 << 18;

struct State {
  // Something of it comes from the batch. Where a loader handed one over, that is what came of that; else of all that
  // is no weight and no number of the program.
  bool data = false;
  bool moved = false;  // dimension 0 is another one than in the data
  bool lost = false;   // it is not known which it is

  bool same() const { return !moved && !lost; }
};

using View = std::tuple<record::StorageId, std::int64_t, std::int64_t, std::vector<std::int64_t>>;

View view_of(const TensorUse& use) { return {use.storage, use.begin, use.end, use.shape}; }
std::int64_t first_size(const TensorUse& use) { return use.shape.empty() ? 0 : use.shape[0]; }

template <std::size_t n>
bool listed(const std::array<std::string_view, n>& names, const Op& op) {
  return std::ranges::find(names, base_name(op.name)) != names.end();
}

// Of "[0, 2, 1]" or "0": the numbers, negative ones counted from the end.
std::vector<std::int64_t> dims(const record::ScalarUse& scalar, std::size_t rank) {
  std::vector<std::int64_t> out;
  const auto add = [&](std::int64_t dim) { out.push_back(dim < 0 ? dim + static_cast<std::int64_t>(rank) : dim); };
  const char* at = scalar.text.c_str();
  if (scalar.number) {
    add(static_cast<std::int64_t>(*scalar.number));
    return out;
  }
  while (*at != '\0') {
    char* end = nullptr;
    const long value = std::strtol(at, &end, 10);
    if (end != at) add(value);
    at = end != at ? end : at + 1;
  }
  return out;
}

// Exchanges dimension 0 for another.
bool exchanges(const Op& op) {
  constexpr std::array<std::string_view, 9> kMoves = {"t",        "numpy_T",  "transpose", "permute", "movedim",
                                                      "moveaxis", "swapaxes", "swapdims",  "rot90"};
  if (!listed(kMoves, op) || op.inputs.empty()) return false;
  const std::size_t rank = op.inputs[0].shape.size();
  if (rank < 2) return false;
  for (const auto& scalar : op.scalars) {
    const std::vector<std::int64_t> found = dims(scalar, rank);
    if (scalar.arg == "dims") return !found.empty() && base_name(op.name) == "permute" ? found[0] != 0 : true;
    if (scalar.arg == "dim0" || scalar.arg == "dim1" || scalar.arg == "source" || scalar.arg == "destination")
      if (!found.empty() && found[0] == 0) return true;
  }
  const bool reported =
      std::ranges::any_of(op.scalars, [](const auto& s) { return s.arg == "dim0" || s.arg == "source"; });
  return !reported;
}

// Puts the elements of dimension 0 in another order, or leaves that dimension out.
bool loses(const Op& op) {
  constexpr std::array<std::string_view, 19> kReductions = {
      "sum",    "mean",   "nansum", "nanmean", "std",  "var",  "std_mean",           "var_mean",
      "amax",   "amin",   "max",    "min",     "prod", "norm", "linalg_vector_norm", "logsumexp",
      "median", "argmax", "argmin"};
  constexpr std::array<std::string_view, 3> kOrders = {"flip", "roll", "sort"};
  if ((!listed(kReductions, op) && !listed(kOrders, op)) || op.inputs.empty() || op.inputs[0].shape.empty())
    return false;
  const std::size_t rank = op.inputs[0].shape.size();
  if (std::ranges::any_of(op.outputs, [&](const auto& out) { return out.shape.size() == rank; }) &&
      listed(kReductions, op))
    return false;  // keepdim
  return std::ranges::any_of(op.scalars, [&](const auto& scalar) {
    if (scalar.arg != "dim" && scalar.arg != "dims") return false;
    const std::vector<std::int64_t> found = dims(scalar, rank);
    return std::ranges::find(found, 0) != found.end();
  });
}

// Sums the rows that have one index: what it gives has a row for each group.
bool makes_groups(const Op& op) {
  constexpr std::array<std::string_view, 5> kGroups = {"index_add", "index_reduce", "scatter_add", "scatter_reduce",
                                                       "segment_reduce"};
  if (!listed(kGroups, op)) return false;
  const std::size_t rank = op.outputs.empty() ? 0 : op.outputs[0].shape.size();
  return std::ranges::any_of(op.scalars, [&](const auto& scalar) {
    return (scalar.arg == "dim" || scalar.arg == "axis") && dims(scalar, rank) == std::vector<std::int64_t>{0};
  });
}

// Does arithmetic take each row of it, of what is no data, along with one of the result (points, that a mask of the
// program's own is multiplied with)? Not an expanded one, whose rows are one.
bool has_a_row_for_each(const TensorUse& in, const Op& op) {
  constexpr std::array<std::string_view, 5> kRowByRow = {"add", "sub", "mul", "div", "pow"};
  if (!listed(kRowByRow, op) || first_size(in) < 2) return false;
  std::int64_t bytes = static_cast<std::int64_t>(sense::info(in.dtype).size_bytes);
  for (const std::int64_t size : in.shape) bytes *= size;
  return in.end - in.begin >= bytes && std::ranges::any_of(op.outputs, [&](const TensorUse& out) {
           return out.shape.size() == in.shape.size() && first_size(out) == first_size(in);
         });
}

// Takes as many rows as there were, as a list of numbers says (x[torch.randperm(len(x))]). Two lists pick elements, row
// by row.
bool may_shuffle(const Op& op) {
  if (base_name(op.name) != "index" && base_name(op.name) != "index_select") return false;
  if (op.inputs.size() != 2 || op.outputs.empty()) return false;
  const TensorUse &self = op.inputs[0], &index = op.inputs[1], &out = op.outputs[0];
  if (base_name(op.name) == "index_select" && std::ranges::any_of(op.scalars, [&](const auto& s) {
        return s.arg == "dim" && dims(s, self.shape.size()) != std::vector<std::int64_t>{0};
      }))
    return false;
  return index.shape.size() == 1 && first_size(self) > 1 && first_size(self) == first_size(out) &&
         first_size(index) == first_size(out);
}

// The rows of a product are those of its left factor.
bool is_left_only(const Op& op) {
  constexpr std::array<std::string_view, 8> kProducts = {"mm",    "bmm",   "matmul", "mv",
                                                         "addmm", "addmv", "linear", "baddbmm"};
  return listed(kProducts, op);
}

// One element alone: it has no rows to give.
bool is_number(const TensorUse& use) {
  return std::ranges::all_of(use.shape, [](std::int64_t size) { return size == 1; });
}

class Follow {
 public:
  // In the order in which they ended: what an operator makes in others is its own result at last.
  explicit Follow(const record::Trace& trace)
      : trace_(trace),
        is_loaded_(std::ranges::any_of(trace.storages, [](const auto& s) { return s.origin == Origin::kBatch; })),
        whole_(trace.storages.size()),
        known_(trace.storages.size()) {
    for (const Op& op : trace_.ops) {
      const bool part_of_view = op.parent < trace_.ops.size() && trace_.ops[op.parent].is_view;
      if (!op.is_node && !op.allocates && !part_of_view) ops_.push_back(&op);
    }
    std::ranges::sort(ops_, {}, &Op::end_order);
  }

  // Forward only: the calls must come in the order in which the operators ended.
  void until(OpId last) {
    for (; next_ < ops_.size() && ops_[next_]->end_order <= trace_.ops[last].end_order; ++next_) step(*ops_[next_]);
  }
  State of(const TensorUse& use) const {
    if (use.storage >= whole_.size()) return {};
    const auto found = views_.find(view_of(use));
    if (found != views_.end()) return found->second;
    if (known_[use.storage]) return whole_[use.storage];
    const Origin origin = trace_.storages[use.storage].origin;
    return {.data = origin == Origin::kBatch || (origin == Origin::kUnknown && !is_loaded_)};
  }

 private:
  void step(const Op& op) {
    const bool product = is_left_only(op), biased = base_name(op.name).starts_with("add");
    State made;
    bool any_input = false, any_rows = false, pairs_with_weight = false;
    const TensorUse* left = nullptr;
    for (const TensorUse& in : op.inputs) {
      if (in.storage >= whole_.size() || (in.written && in.arg == "out")) continue;
      const State state = of(in);
      any_input = true;
      if (is_number(in)) continue;
      made.data |= state.data;
      if (product) {
        if (in.arg == "bias" || (biased && in.arg == "self") || left != nullptr) continue;
        left = &in;
        made.moved = state.moved;
        made.lost = state.lost || !state.data;  // a weight on the left has rows of its own
        continue;
      }
      if (!state.data) {
        pairs_with_weight |= has_a_row_for_each(in, op);
        continue;
      }
      // Broadcasting adds dimensions in front: the rows are those of an operand that has as many.
      const bool rows = std::ranges::any_of(op.outputs, [&](const TensorUse& out) {
        return out.shape.size() == in.shape.size() && first_size(out) == first_size(in);
      });
      if (rows && !any_rows) made.moved = made.lost = false;
      if (!rows && any_rows) continue;
      any_rows |= rows;
      made.moved |= state.moved;
      made.lost |= state.lost;
    }
    made.lost |= pairs_with_weight;
    // Drawn, or filled by the program: samples it may be. Beside what a loader gave, what the program fills is a table
    // (an identity, positions, counts), with as many rows by chance.
    if (op.random || (!any_input && !is_loaded_)) made.data = true;
    if (loses(op) || makes_groups(op) || may_shuffle(op)) made.lost = true;
    const bool exchanged = exchanges(op);
    if (exchanged) made.moved = !made.moved;
    for (const TensorUse& out : op.outputs) {
      if (out.storage >= whole_.size()) continue;
      State state = made;
      // Of a square one, the trace does not distinguish the transposed view from the other.
      const auto alike = [&](const TensorUse& in) { return view_of(in) == view_of(out); };
      state.lost |= exchanged && std::ranges::any_of(op.inputs, alike);
      views_[view_of(out)] = state;
      if (op.is_view) continue;
      whole_[out.storage] = state;
      known_[out.storage] = true;
    }
  }

  const record::Trace& trace_;
  const bool is_loaded_;
  std::vector<const Op*> ops_;
  std::size_t next_ = 0;
  std::vector<State> whole_;
  std::vector<bool> known_;
  std::map<View, State> views_;
};

}  // namespace

std::vector<bool> rows_can_be_samples(const record::Trace& trace, const std::vector<Birth>& births, std::size_t most) {
  std::vector<bool> can(std::min(most, births.size()), true);
  std::vector<std::pair<const TensorUse*, std::size_t>> asked;  // what is bad of which birth
  for (std::size_t i = 0; i < can.size(); ++i) {
    if (births[i].rows.empty() || births[i].op >= trace.ops.size() || trace.ops.size() > kMostOps) continue;
    const Op& op = trace.ops[births[i].op];
    const auto bad = std::ranges::find_if(op.outputs, [](const TensorUse& use) { return !use.health.ok(); });
    if (bad == op.outputs.end() || op.phase == record::Phase::kData) continue;
    if (op.phase == record::Phase::kOptimizer) {  // its rows are those of parameters and their state
      can[i] = false;
      continue;
    }
    asked.emplace_back(&*bad, i);
  }
  if (asked.empty()) return can;
  std::ranges::sort(asked, {}, [&](const auto& one) { return trace.ops[births[one.second].op].end_order; });
  Follow follow(trace);
  for (const auto& [use, i] : asked) {
    follow.until(births[i].op);
    const State state = follow.of(*use);
    can[i] = state.data && state.same();
  }
  return can;
}

}  // namespace finitude::locate
