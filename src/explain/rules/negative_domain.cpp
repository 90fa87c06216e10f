// sqrt, rsqrt or a fractional power of a negative number; acos, asin, atanh, acosh, erfinv outside their
// domain.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "explain/edits.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

struct Domain {
  double low, high;
};

// A value outside the domain: beside the edge with all digits that it takes to see on which side it is.
std::string figure_outside(double value, const Domain& domain) {
  const double shown = std::strtod(figure(value).c_str(), nullptr);
  if (shown < domain.low || shown > domain.high) return figure(value);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  for (int digits = 7; digits < 17; ++digits) {
    std::array<char, 32> shorter{};
    std::snprintf(shorter.data(), shorter.size(), "%.*g", digits, value);
    const double read = std::strtod(shorter.data(), nullptr);
    if (read < domain.low || read > domain.high) return shorter.data();
  }
  return text.data();
}

std::optional<Domain> domain_of(const record::Trace& trace, const record::Op& op) {
  const std::string name = plain_name(op.name);
  if (one_of(name, {"sqrt", "rsqrt"})) return Domain{0, INFINITY};
  if (one_of(name, {"acos", "asin", "atanh", "arccos", "arcsin", "arctanh", "erfinv", "special_erfinv"}))
    return Domain{-1, 1};
  if (one_of(name, {"acosh", "arccosh"})) return Domain{1, INFINITY};
  if (one_of(name, {"pow", "float_power"})) {
    const auto exponent = constant(trace, operand(op, "exponent", 1));
    if (exponent && std::isfinite(*exponent) && *exponent != std::floor(*exponent)) return Domain{0, INFINITY};
    // One of several exponents may be a fraction: of finite numbers only that gives NaN.
    const Operand x = operand(op, "self", 0), power = operand(op, "exponent", 1);
    if (!exponent && x.tensor && power.tensor && !power.has_nan() && !power.has_inf() && !x.has_inf())
      return Domain{0, INFINITY};
  }
  return std::nullopt;
}

// Is the edge of the domain a pole?
bool has_pole(const record::Trace& trace, const record::Op& op) {
  const std::string name = plain_name(op.name);
  if (one_of(name, {"rsqrt", "atanh", "arctanh", "erfinv", "special_erfinv"})) return true;
  if (!one_of(name, {"pow", "float_power"})) return false;
  const Operand power = operand(op, "exponent", 1);
  const auto exponent = constant(trace, power);
  return exponent ? *exponent < 0 : power.tensor && !is_integral(power) && power.min() < 0;
}

// The operand is the small difference of large numbers, and rounding made it leave the domain.
bool cancelled(const Scene& s, const Operand& x, const Domain& domain) {
  const record::OpId made = x.tensor ? producer(s.trace, s.culprit, *x.tensor) : record::kNone;
  if (made == record::kNone || !one_of(plain_name(s.trace.ops[made].name), {"sub", "add", "rsub", "addmm", "baddbmm"}))
    return false;
  double largest = 0;
  for (const auto& use : s.trace.ops[made].inputs) largest = std::max(largest, use.health.absmax);
  const double outside = std::max(domain.low - x.min(), x.max() - domain.high);
  return outside <= 64 * sense::info(x.dtype()).epsilon * largest;
}

class NegativeDomain : public Rule {
 public:
  const char* name() const override { return "negative-domain"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const auto* bad = s.first ? bad_output(*s.first) : nullptr;
    if (!bad || bad->health.nan == 0) return std::nullopt;
    const auto domain = domain_of(s.trace, *s.first);
    const Operand x = operand(*s.first, "self", 0);
    if (!domain || !x || x.has_nan() || (x.min() >= domain->low && x.max() <= domain->high)) return std::nullopt;
    const std::string op = plain_name(s.first->name);
    const bool rounding = cancelled(s, x, *domain);
    const double outside = x.min() < domain->low ? x.min() : x.max();
    std::string text = op + (domain->low == 0 ? " of a negative number" : " outside its domain") + ": " +
                       counted(bad->health.nan, "NaN") + (s.culprit == s.birth.op ? at_rows(s.birth) : "") +
                       ", the argument goes to " + figure_outside(outside, *domain);
    if (rounding) text += "; it is a small difference of large numbers, left over from rounding (cancellation)";
    text += hidden_by(s);
    std::string fix = "clamp the argument into the domain";
    if (domain->low == 0)
      fix = "clamp the argument above zero before " + op +
            (rounding ? "; or, not tried here, compute the difference without cancellation (torch.var, torch.cdist)"
                      : "");
    Finding result = finding(s, "negative-domain", kScorePoint + 5, text, fix);
    Probe probe(s, s.culprit);
    Variant inside;
    inside.clamp_arg = "self";
    const bool pole = has_pole(s.trace, *s.first);
    inside.clamp_min = domain->low + (pole ? 1e-3 : 0);
    if (std::isfinite(domain->high)) inside.clamp_max = domain->high - (pole ? 1e-3 : 0);
    probe.finite_if("self clamped into the domain", inside);
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    Edits edits(s);
    if (domain->low == 0)
      edits.above("self", 0);  // at 0 itself the derivative is infinite
    else
      edits.inside("self", domain->low, domain->high);
    edits.named_by_rule().left_out().into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> negative_domain() { return std::make_unique<NegativeDomain>(); }

}  // namespace finitude::explain
