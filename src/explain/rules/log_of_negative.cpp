// A logarithm of a negative number: log, log1p below -1, logit outside [0, 1], logdet of a negative
// determinant.
#include <cmath>

#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/spectrum.h"

namespace finitude::explain {
namespace {

struct Domain {
  double low, high;
};

std::optional<Domain> domain_of(const std::string& name) {
  if (one_of(name, {"log", "log2", "log10", "xlogy", "special_xlogy"})) return Domain{0, INFINITY};
  if (one_of(name, {"log1p", "special_xlog1py"})) return Domain{-1, INFINITY};
  if (one_of(name, {"logit", "special_logit"})) return Domain{0, 1};
  return std::nullopt;
}

// torch.logdet computes log |det| and the sign, and puts NaN where the sign is negative. kNone: the birth is in none.
record::OpId around_logdet(const Scene& s) {
  record::OpId id = s.birth.op;
  for (int depth = 0; id < s.trace.ops.size() && depth < 8; ++depth, id = s.trace.ops[id].parent)
    if (plain_name(s.trace.ops[id].name) == "logdet") return id;
  return record::kNone;
}

// The sign of a determinant that is zero up to rounding is chance.
Finding of_singular(const Scene& s, const Spectrum& spectrum, sense::DType dtype) {
  std::string fix = "add a small multiple of the identity to the matrix (C + eps * I)";
  if (spectrum.rank_at_most > 0) fix += ", or use more samples than it has dimensions";
  return finding(s, "degenerate-linalg", kScoreOneMeaning,
                 "logdet: the sign is that of rounding, and it is negative: " + reported(spectrum, dtype), fix);
}

class LogOfNegative : public Rule {
 public:
  const char* name() const override { return "log-of-negative"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (!s.op) return std::nullopt;
    if (const record::OpId logdet = around_logdet(s); logdet != record::kNone && !s.backward) {
      const auto* bad = bad_output(*s.op);
      if (!bad || bad->health.nan == 0) return std::nullopt;
      const auto spectrum = logarithmic_determinant(s.trace, logdet);
      Finding result =
          spectrum ? of_singular(s, *spectrum, bad->dtype)
                   : finding(s, "log-of-negative", kScoreOneMeaning, "logdet of a matrix whose determinant is negative",
                             "torch.linalg.slogdet(W)[1], or a parametrisation with a positive determinant");
      conclude(result, true);
      return result;
    }
    const auto domain = domain_of(plain_name(s.first->name));
    const auto* bad = bad_output(*s.first);
    if (!domain || !bad || bad->health.nan == 0) return std::nullopt;
    const bool second = plain_name(s.first->name).find("xlog") != std::string::npos;
    const std::string arg = second ? "other" : "self";
    const Operand x = operand(*s.first, arg, second ? 1 : 0);
    if (!x || (x.min() >= domain->low && x.max() <= domain->high)) return std::nullopt;
    const double outside = x.min() < domain->low ? x.min() : x.max();
    std::string text = domain->low == 0 && domain->high > 1 ? "log of a negative number" : "log outside its domain";
    text += ": " + counted(bad->health.nan, "NaN") + (s.culprit == s.birth.op ? at_rows(s.birth) : "") + ", " + arg +
            " as far as " + figure(outside) + hidden_by(s);
    Finding result = finding(
        s, "log-of-negative", kScorePoint + 5, text,
        "clamp the argument into the domain; or, not tried here, make it positive (softplus or exp of the output, the "
        "unscaled value)");
    Probe probe(s, s.culprit);
    if (x.min() < domain->low) probe.clamped(arg, domain->low + 1e-3);
    probe.in_float64(false);
    probe.without_rows();
    probe.conclude(result, true);
    if (domain->high <= 1)
      Edits(s).inside(arg, 0, 1).named_by_rule().into(result);
    else
      Edits(s).inside(arg, domain->low, INFINITY).above(arg, domain->low).named_by_rule().into(result);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> log_of_negative() { return std::make_unique<LogOfNegative>(); }

}  // namespace finitude::explain
