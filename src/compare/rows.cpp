// The alignment held against the flow of data.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/checksum.h"
#include "compare/judge.h"

namespace finitude::compare {
namespace {

constexpr int kRounds = 4;                // taking one pair apart may leave another without support
constexpr std::size_t kMostAlike = 64;    // calls of one operator and form that are tried for one
constexpr std::size_t kMostTensors = 16;  // of a call that are looked through: lists of tensors go by position anyway

class Rows {
 public:
  Rows(const Run& a, Run& b) : a_(a), b_(b), keys_a_(keys_of(a)), keys_b_(keys_of(b)) {
    rows_ = align(keys_a_, keys_b_);
    for (const Key& key : keys_a_) note(key, in_a_);
    for (const Key& key : keys_b_) note(key, in_b_);
  }

  std::vector<Row> take(std::vector<Pair>* pairs) {
    readers_a_ = readers_of(a_);
    readers_b_ = readers_of(b_);
    others_ = same_results(a_, b_);
    if (flows(readers_a_) && flows(readers_b_)) {
      for (int round = 0; round < kRounds && part(); ++round) {
      }
      for (int round = 0; round < kRounds && join_moved(); ++round) {
      }
    }
    partners();
    pairs->assign(rows_.size(), Pair());
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].a != kGap && rows_[r].b != kGap) (*pairs)[r].swapped = turn(rows_[r].a, rows_[r].b);
    }
    return std::move(rows_);
  }

 private:
  using Readers = std::vector<std::vector<std::uint32_t>>;

  static bool flows(const Readers& readers) {
    return std::any_of(readers.begin(), readers.end(), [](const auto& of) { return !of.empty(); });
  }

  void partners() {
    partner_.assign(a_.calls.size(), kNone);
    for (const Row& row : rows_) {
      if (row.a != kGap && row.b != kGap) partner_[row.a] = row.b;
    }
  }

  // Whether any pair was taken apart.
  bool part() {
    partners();
    std::vector<Row> left;
    left.reserve(rows_.size());
    for (const Row& row : rows_) {
      if (row.a == kGap || row.b == kGap || supported(row.a, row.b)) {
        left.push_back(row);
        continue;
      }
      left.push_back({row.a, kGap});
      left.push_back({kGap, row.b});
    }
    const bool any = left.size() != rows_.size();
    rows_ = std::move(left);
    return any;
  }

  bool supported(std::uint32_t i, std::uint32_t j) const {
    const Key &ka = keys_a_[i], &kb = keys_b_[j];
    if (ka.values != 0 && ka.values == kb.values) return true;
    if (belong_elsewhere(ka, kb)) return false;
    if (ka.magnitude > 0 && std::fabs(ka.magnitude - kb.magnitude) <= 1e-3 * ka.magnitude) return true;
    const Call &ca = a_.calls[i], &cb = b_.calls[j];
    const std::size_t of_a = std::min(ca.inputs.size(), kMostTensors), of_b = std::min(cb.inputs.size(), kMostTensors);
    std::size_t common = 0;
    for (std::size_t k = 0; k < of_a; ++k) {
      bool known = false;
      for (std::size_t l = 0; l < of_b; ++l) known |= one_thing(ca.inputs[k], cb.inputs[l]);
      common += known;
    }
    // Of two products in backward each reads the gradient, in two forms: more than that has to be common then.
    if (ka.shapes == kb.shapes ? common != 0 : 2 * common > of_a) return true;
    for (const std::uint32_t x : readers_a_[i]) {
      for (const std::uint32_t y : readers_b_[j]) {
        if (x < a_.calls.size() ? y < b_.calls.size() && partner_[x] == y
                                : y >= b_.calls.size() && others_[x - a_.calls.size()] == y - b_.calls.size())
          return true;
      }
    }
    // Nothing is known of where either comes from or goes to: then nothing speaks against the pair.
    return (of_a == 0 && of_b == 0) || (readers_a_[i].empty() && readers_b_[j].empty());
  }

  // What computes something of something, where both are known by their bits; 0: they are not.
  static std::uint64_t computation(const Key& key) {
    if (key.values == 0 || key.reads == 0) return 0;
    const std::array<std::uint64_t, 5> of = {key.name, key.shapes, key.scalars, key.values, key.reads};
    return base::checksum(of.data(), sizeof of, 0);
  }

  static void note(const Key& key, std::unordered_set<std::uint64_t>& in) {
    in.insert(key.form);
    if (const std::uint64_t same = computation(key); same != 0) in.insert(same);
  }

  // Each of the two has its like on the other side: the layers of one size that a program calls in another order. They
  // read other named memory, or compute other bits of other bits.
  bool belong_elsewhere(const Key& ka, const Key& kb) const {
    const bool of_other_memory = ka.shapes == kb.shapes && ka.dtypes == kb.dtypes && ka.memory != kb.memory;
    if (of_other_memory && in_b_.contains(ka.form) && in_a_.contains(kb.form)) return true;
    const std::uint64_t x = computation(ka), y = computation(kb);
    return x != 0 && y != 0 && x != y && in_b_.contains(x) && in_a_.contains(y);
  }

  // A compiler may issue calls in another order, which no alignment of sequences has: those that are left over on both
  // sides and compute the same of the same. Such a row is where the call of A does. Whether there was any.
  bool join_moved() {
    partners();
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> left;  // of B, by operator and shapes, as rows
    for (std::uint32_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].a == kGap) left[keys_b_[rows_[r].b].name ^ keys_b_[rows_[r].b].shapes].push_back(r);
    }
    bool any = false;
    for (Row& row : rows_) {
      if (row.a == kGap || row.b != kGap) continue;
      const auto found = left.find(keys_a_[row.a].name ^ keys_a_[row.a].shapes);
      if (found == left.end()) continue;
      std::size_t looked = 0;
      for (const std::uint32_t r : found->second) {
        if (++looked > kMostAlike) break;
        if (rows_[r].b == kGap || !one_call(row.a, rows_[r].b)) continue;
        row.b = rows_[r].b;
        partner_[row.a] = row.b;
        rows_[r].b = kGap;  // empty now
        any = true;
        break;
      }
    }
    std::erase(rows_, Row{});
    return any;
  }

  bool one_call(std::uint32_t i, std::uint32_t j) const {
    const Key &ka = keys_a_[i], &kb = keys_b_[j];
    if (ka.scalars == kb.scalars && ka.values != 0 && ka.values == kb.values && ka.reads == kb.reads) return true;
    const Call &ca = a_.calls[i], &cb = b_.calls[j];
    if (ca.inputs.empty() || ca.inputs.size() != cb.inputs.size()) return false;
    for (std::size_t k = 0; k < ca.inputs.size(); ++k) {
      if (!one_thing(ca.inputs[k], cb.inputs[k])) return false;
    }
    return true;
  }

  // Made by calls that are each other's, or the same memory from before the step.
  bool one_thing(const Tensor& x, const Tensor& y) const {
    if (x.source != kNone) return partner_[x.source] == y.source && y.source != kNone;
    if (y.source != kNone || x.name != y.name) return false;
    return !x.name.empty() || (x.has_checksum && y.has_checksum && x.checksum == y.checksum);
  }

  // Of what does not mind the order of its first two operands.
  static bool commutes(std::string_view op) {
    static constexpr std::array<std::string_view, 12> kStems = {
        "aten::add",  "aten::mul", "aten::multiply", "aten::maximum",     "aten::minimum",    "aten::fmax",
        "aten::fmin", "aten::eq",  "aten::ne",       "aten::logical_and", "aten::logical_or", "aten::bitwise_and"};
    return std::find(kStems.begin(), kStems.end(), stem_of(op)) != kStems.end();
  }

  bool turn(std::uint32_t i, std::uint32_t j) {
    const Call& ca = a_.calls[i];
    Call& cb = b_.calls[j];
    if (!commutes(ca.op) || ca.inputs.size() != 2 || cb.inputs.size() != 2) return false;
    for (const Call* call : {&ca, static_cast<const Call*>(&cb)}) {
      for (const Scalar& s : call->scalars) {
        if (s.arg == "alpha" && s.text != "1") return false;
      }
    }
    const auto alike = [&](const Tensor& x, const Tensor& y) {
      if (x.shape != y.shape) return 0;
      return 2 * (x.has_checksum && y.has_checksum && x.checksum == y.checksum) + one_thing(x, y);
    };
    const auto &x = ca.inputs, &y = cb.inputs;
    if (alike(x[0], y[1]) + alike(x[1], y[0]) <= alike(x[0], y[0]) + alike(x[1], y[1])) return false;
    std::swap(cb.inputs[0], cb.inputs[1]);
    return true;
  }

  const Run& a_;
  Run& b_;
  std::vector<Key> keys_a_, keys_b_;
  std::vector<Row> rows_;
  std::unordered_set<std::uint64_t> in_a_, in_b_;  // forms and computations of the calls
  Readers readers_a_, readers_b_;
  std::vector<std::uint32_t> others_, partner_;
};

}  // namespace

std::vector<Row> rows_of(const Run& a, Run& b, std::vector<Pair>* pairs) { return Rows(a, b).take(pairs); }

}  // namespace finitude::compare
