// 0 x Inf, where the infinity was intended (a mask, the log-probability of an impossible event) or came from
// outside.
#include <cmath>

#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/put_in.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

bool multiplies(const std::string& name) {
  return one_of(name, {"mul", "multiply", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addcmul", "matmul",
                       "linear", "outer", "einsum", "vdot", "convolution"});
}

class ZeroTimesInfinity : public Rule {
 public:
  const char* name() const override { return "zero-times-infinity"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op || !multiplies(plain_name(s.op->name))) return std::nullopt;
    const auto* bad = bad_output(*s.op);
    if (!bad || bad->health.nan == 0) return std::nullopt;
    std::string inf_arg;
    std::uint64_t infs = 0, zeros = 0;
    bool integral = false;  // a boolean mask: that the product is NaN shows its zeros
    bool nan_input = false;
    const auto look = [&](const Operand& x, const std::string& arg) {
      nan_input = nan_input || x.has_nan();
      zeros += x.zeros();
      integral = integral || is_integral(x);
      if (!x.has_inf() || infs > 0) return;
      inf_arg = arg;
      infs = x.tensor ? x.tensor->health.inf() : 1;
    };
    for (const auto& use : s.op->inputs) look({&use, nullptr}, use.arg);
    for (const auto& scalar : s.op->scalars)
      if (scalar.tensor_like) look({nullptr, &scalar}, scalar.arg);
    if (nan_input || infs == 0 || (zeros == 0 && !integral)) return std::nullopt;
    const auto source = put_in(s);
    const bool of_forward = s.backward && s.node && is_builtin_node(*s.node) && s.forward;
    Finding result = finding(
        s, "zero-times-infinity", kScoreInfinities,
        "0 x Inf in " + s.op->name + ": " + counted(infs, "infinite value") + " in " +
            (inf_arg.empty() ? "one operand" : inf_arg) + (infs == 1 ? " meets zeros" : " meet zeros") +
            at_rows(s.birth) + (source ? reported_source(s, *source) : "") + hidden_by(s),
        of_forward
            ? "double where: put a finite number in the place of the infinities with torch.where before " +
                  s.forward->name + at_line(s.trace, *s.forward) +
                  " as well; a choice after it does not protect the gradient"
            : std::string("take the masked elements out with torch.where or masked_fill before the product; a factor "
                          "of zero does not remove an infinity"));
    Probe probe(s, s.birth.op);
    if (!inf_arg.empty()) {
      for (const double infinity : {-1.0, 1.0}) {
        Variant variant;
        variant.replace_arg = inf_arg;
        variant.replace_from = infinity * INFINITY;
        variant.replace_to = 0;
        const Operand x = operand(*s.op, inf_arg, 0);
        const bool only = x.tensor && (infinity < 0 ? x.tensor->health.pos_inf == 0 : x.tensor->health.neg_inf == 0);
        if (only) probe.finite_if(figure(variant.replace_from) + " in " + inf_arg + " replaced by 0", variant);
      }
    }
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s, s.backward && s.node && is_builtin_node(*s.node) ? s.birth.forward : s.birth.op);
    if (!s.backward && !inf_arg.empty()) edits.replaced(inf_arg, -INFINITY, 0).replaced(inf_arg, INFINITY, 0);
    if (!s.backward) edits.named_by_rule();
    edits.left_out();
    if (of_forward) edits.named_by_rule();
    edits.into(result);
    if (source) mend_before_arithmetic(s, *source, &result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> zero_times_infinity() { return std::make_unique<ZeroTimesInfinity>(); }

}  // namespace finitude::explain
