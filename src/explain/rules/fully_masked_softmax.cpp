// softmax, log_softmax or logsumexp over a row in which every element is -Inf, in forward or in backward; and the
// largest (or smallest) element of such a row, which is an infinity; and exponentials less their largest, manually.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

bool is_softmax(const std::string& name) {
  return name.find("softmax") != std::string::npos || one_of(name, {"logsumexp", "logcumsumexp", "logaddexp"}) ||
         (name.find("attention") != std::string::npos && name.find("backward") == std::string::npos);
}

// Elements along the reduced dimension; 1 where the trace does not say.
std::uint64_t row_length(const record::Op& op, const record::TensorUse& x) {
  if (x.shape.empty()) return 1;
  const std::vector<std::int64_t> dims = dims_of(op);
  std::int64_t dim = dims.empty() ? -1 : dims.front();
  const auto rank = static_cast<std::int64_t>(x.shape.size());
  if (dim < 0) dim += rank;
  return dim >= 0 && dim < rank ? static_cast<std::uint64_t>(std::max<std::int64_t>(x.shape[dim], 1)) : 1;
}

const record::TensorUse* masked_input(const record::Op& op) {
  for (const auto& use : op.inputs)
    if (use.health.neg_inf > 0 && use.health.nan == 0 && use.health.pos_inf == 0) return &use;
  return nullptr;
}

// A softmax that is made of smaller ops, one of which is the birth: logsumexp is exp, sum and log.
record::OpId enclosing_softmax(const Scene& s) {
  record::OpId id = s.birth.op;
  for (int depth = 0; id < s.trace.ops.size() && depth < 8; ++depth, id = s.trace.ops[id].parent)
    if (is_softmax(plain_name(s.trace.ops[id].name))) return id;
  return record::kNone;
}

// What picks an element by its size gives an infinity only where nothing else is left to pick.
bool picks(const std::string& name) {
  return one_of(name, {"max", "amax", "min", "amin", "aminmax", "topk", "kthvalue", "median", "nanmedian", "mode"});
}

std::optional<Finding> nothing_to_pick(const Scene& s) {
  if (!s.op || s.backward || !picks(plain_name(s.op->name))) return std::nullopt;
  const auto* in = bad_input(*s.op);
  const auto* out = bad_output(*s.op);
  if (!in || !out || in->health.nan > 0 || out->health.nan > 0 || in->arg.empty() ||
      !bad_origin(s.trace, s.birth.op, *in).intended)
    return std::nullopt;
  const double infinity = out->health.neg_inf > 0 ? -INFINITY : INFINITY;
  Finding result = finding(s, "fully-masked-softmax", kScoreOneMeaning,
                           plain_name(s.op->name) + " has nothing but masked elements to pick from: " +
                               counted(out->health.inf(), "element") + " of its result " +
                               (out->health.inf() == 1 ? "is " : "are ") + figure(infinity) + at_rows(s.birth),
                           "replace the infinity that is left by a finite number with torch.where where everything is "
                           "masked; or, not tried here, leave at "
                           "least one element unmasked, or drop empty samples");
  Probe probe(s, s.birth.op);
  Variant floor;
  floor.replace_arg = in->arg;
  floor.replace_from = infinity;
  floor.replace_to = infinity < 0 ? -1e4 : 1e4;
  probe.finite_if(figure(infinity) + " replaced by " + figure(floor.replace_to), floor);
  probe.in_float64(false);
  probe.without_rows();
  probe.conclude(result, true);
  Edits(s, s.birth.op).left_out().named_by_rule().bounded(in->arg).into(result);
  return result;
}

// x - x.max(), as exponentials written manually begin: in a row that is all -Inf the largest is -Inf too.
std::optional<Finding> by_hand(const Scene& s) {
  if (!s.op || s.backward || plain_name(s.op->name) != "sub") return std::nullopt;
  const Operand x = operand(*s.op, "self", 0), top = operand(*s.op, "other", 1);
  const auto* bad = bad_output(*s.op);
  if (!bad || !x.tensor || !top.tensor || bad->health.nan == 0 || x.has_nan() || top.has_nan() ||
      x.tensor->health.pos_inf > 0 || top.tensor->health.neg_inf == 0)
    return std::nullopt;
  const record::TensorUse* at = top.tensor;
  record::OpId reader = s.birth.op;
  for (int step = 0; step < 8 && at; ++step) {
    const record::OpId made = producer(s.trace, reader, *at);
    if (made == record::kNone) return std::nullopt;
    const record::Op& op = s.trace.ops[made];
    if (one_of(plain_name(op.name), {"max", "amax"})) {
      const Operand from = operand(op, "self", 0);
      if (!from.tensor || from.tensor->storage != x.tensor->storage) return std::nullopt;
      break;
    }
    at = is_carrier(op) ? carried(op) : nullptr, reader = made;
  }
  const auto& path = s.birth.path;
  const auto is_exp = [&](record::OpId id) {
    return id < s.trace.ops.size() && one_of(plain_name(s.trace.ops[id].name), {"exp", "exp2"});
  };
  if (!at || !std::any_of(path.begin(), path.begin() + std::min<std::ptrdiff_t>(3, std::ssize(path)), is_exp))
    return std::nullopt;
  const std::uint64_t row = std::max<std::uint64_t>(1, x.numel() / std::max<std::uint64_t>(1, top.numel()));
  Finding result =
      finding(s, "fully-masked-softmax", kScoreOneMeaning,
              "exponentials less their largest, over a fully masked row: " +
                  counted(std::max<std::uint64_t>(1, bad->health.nan / row), "row") + " of " + std::to_string(row) +
                  " elements that are all -Inf" + at_rows(s.birth) + ", and -Inf - (-Inf) is NaN" + hidden_by(s),
              "put a finite number in the place of an infinite maximum before it is subtracted; or, not tried here, "
              "leave at least one element of every row unmasked, or mask with torch.finfo(dtype).min instead of -Inf");
  Probe probe(s, s.birth.op);
  probe.in_float64(false);
  probe.without_rows();
  probe.conclude(result, true);
  Edits(s, s.birth.op).replaced("other", -INFINITY, 0).named_by_rule().left_out().into(result);
  return result;
}

class FullyMaskedSoftmax : public Rule {
 public:
  const char* name() const override { return "fully-masked-softmax"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (auto nothing = nothing_to_pick(s)) return nothing;
    if (auto found = by_hand(s)) return found;
    if (!s.op) return std::nullopt;
    const record::OpId around = s.backward ? record::kNone : enclosing_softmax(s);
    const record::Op* softmax = s.backward ? s.forward : around != record::kNone ? &s.trace.ops[around] : s.op;
    if (!softmax || !is_softmax(plain_name(softmax->name))) return std::nullopt;
    const bool inside = around != record::kNone && around != s.birth.op;
    const auto* x = masked_input(*softmax);
    const auto* bad = bad_output(*s.op);
    if (!x || !bad || (bad->health.nan == 0 && !(inside && bad->health.neg_inf > 0))) return std::nullopt;
    const std::uint64_t row = row_length(*softmax, *x);
    if (x->health.neg_inf < row) return std::nullopt;
    const bool values = plain_name(softmax->name).find("logsumexp") == std::string::npos;
    const std::uint64_t rows = std::max<std::uint64_t>(1, inside   ? bad->health.non_finite()
                                                          : values ? bad->health.nan / row
                                                                   : 1);
    std::string text =
        plain_name(softmax->name) + " over a fully masked row: " +
        (s.backward ? "every element of it is -Inf, and backward computes -Inf - (-Inf)"
                    : counted(rows, "row") + " of " + std::to_string(row) + " elements that are all -Inf");
    Finding result = finding(s, "fully-masked-softmax", kScoreOneMeaning, text + at_rows(s.birth) + hidden_by(s),
                             "mask with torch.finfo(dtype).min instead of -Inf; or, not tried here, leave at least one "
                             "element of every row unmasked, or drop empty samples");
    Probe probe(s, inside ? around : s.birth.op);
    if (!s.backward) {
      Variant floor;
      floor.replace_arg = x->arg;
      floor.replace_from = -INFINITY;
      floor.replace_to = -1e4;
      probe.finite_if("-Inf replaced by -1e4", floor);
    }
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    const record::OpId call = s.backward ? s.birth.forward : inside ? around : s.birth.op;
    Edits(s, call).bounded(x->arg).named_by_rule().left_out().into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> fully_masked_softmax() { return std::make_unique<FullyMaskedSoftmax>(); }

}  // namespace finitude::explain
