// A factorisation, inverse or determinant of a singular matrix, and the gradient of eigen- or singular
// vectors where eigenvalues coincide; and the log, root or reciprocal of eigen- or singular values that are zero up to
// rounding.
#include "explain/edits.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "explain/singular.h"
#include "explain/spectrum.h"

namespace finitude::explain {
namespace {

bool is_decomposition(const std::string& name) {
  return one_of(
      name, {"linalg_eigh", "linalg_eig", "linalg_eigvals", "linalg_svd", "svd", "symeig", "linalg_qr", "qr",
             "linalg_lstsq", "LinalgEigh", "LinalgEig", "LinalgSvd", "LinalgQr", "Svd", "Symeig", "Qr", "LinalgLstsq"});
}

const char* values_of(const std::string& decomposition) {
  return decomposition.find("vd") != std::string::npos ? "singular values" : "eigenvalues";
}

bool is_solve(const std::string& name) {
  return one_of(name, {"linalg_inv",
                       "linalg_inv_ex",
                       "inverse",
                       "linalg_solve",
                       "linalg_solve_ex",
                       "linalg_solve_triangular",
                       "triangular_solve",
                       "cholesky",
                       "linalg_cholesky",
                       "linalg_cholesky_ex",
                       "cholesky_solve",
                       "cholesky_inverse",
                       "linalg_slogdet",
                       "slogdet",
                       "logdet",
                       "linalg_det",
                       "det",
                       "linalg_lu",
                       "linalg_lu_factor",
                       "linalg_lu_factor_ex",
                       "linalg_lu_solve",
                       "lu_solve",
                       "linalg_ldl_solve",
                       "linalg_pinv",
                       "pinverse",
                       "LinalgInvEx",
                       "LinalgSolveEx",
                       "LinalgSolveTriangular",
                       "TriangularSolve",
                       "LinalgCholeskyEx",
                       "Cholesky",
                       "CholeskySolve",
                       "CholeskyInverse",
                       "LinalgSlogdet",
                       "LinalgDet",
                       "LinalgLuSolve"});
}

// The argument of a function that has no value, or no derivative, at zero and below.
std::string zero_sensitive(const record::Op& op) {
  const std::string name = plain_name(op.name);
  if (one_of(name, {"log", "log2", "log10", "sqrt", "rsqrt", "pow", "float_power", "reciprocal"})) return "self";
  return one_of(name, {"div", "true_divide"}) ? "other" : "";
}

std::optional<Finding> of_spectrum(const Scene& s) {
  if (!s.first) return std::nullopt;
  const bool derivative = s.backward && s.culprit == s.birth.op;
  if (derivative && (!s.forward || !s.node || !is_builtin_node(*s.node) || s.forward_bad() || bad_input(*s.op)))
    return std::nullopt;
  const record::OpId call = derivative ? s.birth.forward : s.culprit;
  const record::Op& op = s.trace.ops[call];
  if (!derivative && (!bad_output(op) || !inputs_finite(op))) return std::nullopt;
  const std::string arg = zero_sensitive(op);
  const Operand values = arg.empty() ? Operand{} : operand(op, arg, arg == "self" ? 0 : 1);
  if (!values.tensor || values.min() > 0) return std::nullopt;
  const auto spectrum = spectrum_of(s.trace, call, *values.tensor);
  if (!spectrum || !spectrum->singular()) return std::nullopt;
  const std::string name = plain_name(op.name);
  const std::string text = std::string(derivative ? "the derivative of " : "") + name +
                           (arg == "self" ? " of " : " by ") + reported(*spectrum, values.dtype());
  std::string fix = "add a small multiple of the identity to the matrix (C + eps * I) before it is decomposed";
  if (spectrum->rank_at_most > 0) fix += ", or use more samples than it has dimensions";
  if (spectrum->kind == Spectrum::kDeterminant) fix += ", and torch.linalg.slogdet for the logarithm";
  Finding result = finding(s, "degenerate-linalg", kScorePoint + 40, text + hidden_by(s), fix);
  Probe probe(s, derivative ? s.birth.op : call);
  if (!derivative)
    probe.clamped(arg, safe_floor(values.dtype()));
  else if (const auto point = find_point(*s.op))
    probe.zeros_replaced(point->arg);
  probe.in_float64(false);  // the zero is there already
  probe.conclude(result, true);
  Edits(s).above(arg, 0).left_out().into(result);
  return result;
}

class DegenerateLinalg : public Rule {
 public:
  const char* name() const override { return "degenerate-linalg"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (auto found = of_spectrum(s)) return found;
    const auto* bad = s.op ? bad_output(*s.op) : nullptr;
    if (!bad || (s.backward && s.forward_bad())) return std::nullopt;
    const std::string node = s.node ? plain_name(s.node->name) : std::string();
    std::string op = s.backward ? node : plain_name(s.first->name);
    // The failing op may be a part of the decomposition.
    for (record::OpId id = s.birth.op, depth = 0; !s.backward && id < s.trace.ops.size() && depth < 8;
         ++depth, id = s.trace.ops[id].parent)
      if (const std::string outer = plain_name(s.trace.ops[id].name); is_decomposition(outer) || is_solve(outer))
        op = outer;
    const bool decomposition = is_decomposition(op);
    if (!decomposition && !is_solve(op)) return std::nullopt;
    // A singular matrix has the log-determinant -Inf; NaN says that the determinant is negative.
    if (!s.backward && op == "logdet" && bad->health.nan != 0) return std::nullopt;
    if (!s.backward && !inputs_finite(*s.first)) return std::nullopt;
    const std::string higher = s.backward && decomposition && is_of_higher_order(s) ? derivative_of(s) : "";
    const std::string text =
        !higher.empty()
            ? higher + " goes through a decomposition (" + (s.forward ? plain_name(s.forward->name) : op) +
                  ") whose own derivative divides by differences of eigenvalues (or singular values), and they coincide"
        : s.backward && decomposition
            ? "the gradient of " + op + " divides by differences of " + values_of(op) + " that coincide"
            : op + " of a matrix that is singular, or so close to singular that this format shows no difference";
    const std::string fix = !higher.empty() ? "write it out in products where the matrix is small (2 x 2, 3 x 3), or "
                                              "add a small random diagonal that keeps the singular values "
                                              "distinct; a derivative that torch.func takes twice may be finite with "
                                              "torch.autograd.grad(create_graph=True)"
                            : s.backward && decomposition ? "use only the " + std::string(values_of(op)) +
                                                                ", or add a small random diagonal to separate them"
                            : one_of(op, {"linalg_inv", "linalg_inv_ex", "inverse", "linalg_solve", "linalg_solve_ex",
                                          "LinalgInvEx", "LinalgSolveEx"})
                                ? "add a multiple of the identity to the matrix, or torch.linalg.lstsq / pinv"
                                : "add a multiple of the identity to the matrix";
    Finding result = finding(s, "degenerate-linalg", kScoreOneMeaning, text, fix);
    Probe probe(s, s.birth.op);
    probe.again();  // float64 settles nothing: it may invert a matrix that is singular for float32
    probe.conclude(result, s.backward);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> degenerate_linalg() { return std::make_unique<DegenerateLinalg>(); }

}  // namespace finitude::explain
