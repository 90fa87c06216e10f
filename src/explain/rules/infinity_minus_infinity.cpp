// Inf - Inf: infinities of opposite sign added, or equal ones subtracted, directly or inside a reduction.
#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/put_in.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

struct Signs {
  bool plus = false, minus = false, nan = false;
};

Signs signs_of(const Operand& x) {
  if (x.tensor) return {x.tensor->health.pos_inf > 0, x.tensor->health.neg_inf > 0, x.tensor->health.nan > 0};
  return {x.has_inf() && x.max() > 0, x.has_inf() && x.max() < 0, x.has_nan()};
}

// Which op makes NaN of which infinities.
bool explains(const std::string& name, const Signs& a, const Signs& b) {
  if (one_of(name, {"add", "logaddexp"})) return (a.plus && b.minus) || (a.minus && b.plus);
  if (one_of(name, {"sub", "rsub", "lerp", "mse_loss", "smooth_l1_loss"}))
    return (a.plus && b.plus) || (a.minus && b.minus);
  if (one_of(name, {"sum", "mean", "cumsum", "nansum"})) return a.plus && a.minus;
  // These subtract a mean or a maximum from every element.
  if (one_of(name, {"native_layer_norm", "native_batch_norm", "native_group_norm", "layer_norm", "batch_norm",
                    "group_norm", "var", "std", "var_mean", "std_mean"}))
    return a.plus || a.minus;
  return one_of(name, {"softmax", "log_softmax", "safe_softmax", "logsumexp"}) && a.plus;
}

// A matrix product sums products: infinities of both signs, or one that meets a zero, make NaN inside it.
bool product_of_infinities(const record::Op& op, const std::string& name) {
  if (!one_of(name,
              {"mm", "addmm", "bmm", "baddbmm", "matmul", "dot", "vdot", "mv", "addmv", "linear", "convolution",
               "conv1d", "conv2d", "conv3d", "mkldnn_convolution", "_scaled_dot_product_flash_attention_for_cpu"}))
    return false;
  bool infinite = false;
  for (const auto& input : op.inputs) {
    if (input.health.nan != 0) return false;
    infinite |= input.health.inf() != 0;
  }
  return infinite;
}

class InfinityMinusInfinity : public Rule {
 public:
  const char* name() const override { return "infinity-minus-infinity"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const auto* bad = s.op ? bad_output(*s.op) : nullptr;
    if (!bad || bad->health.nan == 0) return std::nullopt;
    const std::string name = plain_name(s.op->name);
    Operand first = operand(*s.op, "self", 0);
    if (!first) first = operand(*s.op, "input", 0);
    const Signs a = signs_of(first), b = signs_of(operand(*s.op, "other", 1));
    if (a.nan || b.nan || (!explains(name, a, b) && !product_of_infinities(*s.op, name))) return std::nullopt;
    const auto source = put_in(s);
    // Of a derivative the program can change what it is taken of.
    const bool of_forward = s.backward && s.node && is_builtin_node(*s.node) && s.forward;
    const record::OpId call = of_forward ? s.birth.forward : s.birth.op;
    const record::Op& changed = s.trace.ops[call];
    bool plus = a.plus || b.plus, minus = a.minus || b.minus;
    for (const auto& use : s.op->inputs) plus |= use.health.pos_inf > 0, minus |= use.health.neg_inf > 0;
    Finding result =
        finding(s, "infinity-minus-infinity", kScoreInfinities,
                "Inf - Inf in " + s.op->name + ": it reads infinities and makes " + counted(bad->health.nan, "NaN") +
                    at_rows(s.birth) + (source ? reported_source(s, *source) : "") + hidden_by(s),
                "put a large finite number in the place of the infinities before " + plain_name(changed.name) +
                    " (torch.finfo(dtype)." +
                    (!minus  ? "max"
                     : !plus ? "min"
                             : "max and .min") +
                    ")");
    Probe probe(s, s.birth.op);
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s, call);
    for (const auto& use : changed.inputs)
      if (use.health.inf() > 0 && !use.arg.empty()) edits.bounded(use.arg);
    edits.named_by_rule().left_out().into(result);
    if (source) mend_before_arithmetic(s, *source, &result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> infinity_minus_infinity() { return std::make_unique<InfinityMinusInfinity>(); }

}  // namespace finitude::explain
