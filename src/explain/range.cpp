// See range.h.
#include "explain/range.h"

#include <algorithm>
#include <cmath>

#include "explain/origin.h"
#include "explain/singular.h"

namespace finitude::explain {

namespace {

bool floating(const record::TensorUse& use) { return use.dtype != sense::DType::kOther && use.health.numel > 0; }

// Of a whole number in place of a tensor (`x * 10`) the trace has the range, of tensors of them it has none.
bool ranged(const record::TensorUse& use) { return floating(use) || (use.health.numel == 1 && use.health.absmax > 0); }

double largest_of(const record::Op& op) {
  double largest = 0;
  for (const auto& use : op.inputs)
    if (ranged(use)) largest = std::max(largest, use.health.absmax);
  for (const auto& scalar : op.scalars)
    if (scalar.tensor_like && scalar.number) largest = std::max(largest, std::fabs(*scalar.number));
  return largest;
}

double product_of(const record::Op& op) {
  double product = 1;
  for (const auto& use : op.inputs)
    if (ranged(use)) product *= std::max(use.health.absmax, 1.0);
  for (const auto& scalar : op.scalars)
    if (scalar.number && (scalar.tensor_like || scalar.arg == "alpha" || scalar.arg == "value"))
      product *= std::max(std::fabs(*scalar.number), 1.0);
  return product;
}

double count_of(const record::Op& op) {
  double count = 1;
  for (const auto& use : op.inputs)
    if (floating(use)) count = std::max(count, double(use.health.numel));
  return count;
}

// An upper bound on the magnitude of the result or of an intermediate value.
double bound(const record::Op& op, const std::string& name) {
  const double a = largest_of(op), product = product_of(op), count = count_of(op);
  if (is_carrier(op) || one_of(name, {"full", "full_like", "new_full", "fill", "scalar_tensor"})) return a;
  if (one_of(name, {"mul", "multiply", "addcmul", "outer"})) return product + a;
  if (one_of(name, {"add", "sub", "rsub", "lerp"})) return 2 * product;
  if (one_of(name, {"sum", "mean", "cumsum", "nansum", "scatter_add", "index_add"})) return count * a;
  if (one_of(name, {"pow", "float_power"})) {
    const Operand exponent = operand(op, "exponent", 1), base = operand(op, "self", 0);
    return base && exponent
               ? std::pow(std::max(base.absmax(), 1e-300), base.absmax() < 1 ? exponent.min() : exponent.max())
               : a * a;
  }
  if (one_of(name, {"prod", "cumprod"})) return std::pow(a, count);
  return product * std::max(a, 1.0) * 4 * count;  // contractions, squares summed, norms, losses
}

// copy_ also lists its target, whose old contents do not matter.
bool casts_integers(const record::Op& op) {
  if (!is_carrier(op) || op.inputs.empty()) return false;
  const auto source =
      std::find_if(op.inputs.begin(), op.inputs.end(), [](const auto& use) { return use.arg == "src"; });
  return (source != op.inputs.end() ? *source : op.inputs.front()).dtype == sense::DType::kOther;
}

double exponential_argument(const record::Op& op, const std::string& name) {
  const Operand self = operand(op, "self", 0);
  if (one_of(name, {"sinh", "cosh"})) return self.absmax();
  return name == "exp2" ? self.max() * std::log(2.0) : self.max();
}

}  // namespace

double largest_exponent(sense::DType dtype) { return std::log(sense::info(dtype).max_finite); }

std::optional<RangeExcess> find_excess(const record::Op& op) {
  if (!inputs_finite(op) || op.allocates) return std::nullopt;
  const auto* bad = bad_output(op);
  if (!bad || find_point(op)) return std::nullopt;
  const std::string name = plain_name(op.name);
  RangeExcess excess;
  excess.dtype = bad->dtype;
  excess.limit = sense::info(bad->dtype).max_finite;
  excess.largest = largest_of(op);
  // Integers are always finite, and the trace has no range of them: what a cast made of them says enough.
  if (casts_integers(op) && bad->health.inf() > 0) {
    excess.integers = true;
    excess.largest = excess.limit;
    return excess;
  }
  if (excess.largest == 0) return std::nullopt;
  if (one_of(name, {"exp", "exp2", "expm1", "sinh", "cosh", "special_expm1", "special_exp2"})) {
    excess.exponential = true;
    excess.argument = exponential_argument(op, name);
    if (bad->health.inf() == 0 || excess.argument < largest_exponent(bad->dtype) - 1) return std::nullopt;
    return excess;
  }
  if (one_of(name, {"div", "true_divide", "reciprocal", "addcdiv", "rsqrt"})) {
    excess.division = true;
    if (bad->health.inf() == 0) return std::nullopt;
    return excess;
  }
  // An elementwise op shows its overflow as Inf; NaN alone means Inf - Inf inside, which only sums can do.
  const bool sums = !one_of(name, {"mul", "add", "sub", "pow", "square", "copy", "to_copy"});
  if (bad->health.inf() == 0 && !sums) return std::nullopt;
  if (!(bound(op, name) > excess.limit)) return std::nullopt;
  return excess;
}

std::string first_read(const record::Op& op) {
  const bool copies = plain_name(op.name) == "copy_" || plain_name(op.name) == "copy";
  for (const auto& use : op.inputs) {
    if (!copies || use.arg == "src") return use.arg;
  }
  return op.inputs.empty() ? std::string() : op.inputs.front().arg;
}

std::string first_factor(const record::Op& op) {
  const bool adds = one_of(plain_name(op.name), {"addmm", "addmv", "addr", "addbmm", "baddbmm"});
  return adds && op.inputs.size() > 1 ? op.inputs[1].arg : first_read(op);
}

}  // namespace finitude::explain
