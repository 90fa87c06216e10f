// See spectrum.h.
#include "explain/spectrum.h"

#include <algorithm>
#include <cmath>

#include "explain/origin.h"

namespace finitude::explain {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;
using record::Trace;

constexpr int kSpectrumSteps = 16;

bool is_eigen(const std::string& name) { return one_of(name, {"linalg_eigh", "linalg_eigvalsh", "symeig"}); }
// Of large matrices a determinant may be anything, and its bound says nothing.
constexpr std::int64_t kMostForDeterminant = 8;
bool is_determinant(const std::string& name) { return one_of(name, {"linalg_det", "det"}); }
bool is_singular_values(const std::string& name) { return one_of(name, {"linalg_svd", "linalg_svdvals", "svd"}); }

const TensorUse* matrix_of(const Op& op) {
  for (const TensorUse& use : op.inputs)
    if (use.shape.size() >= 2 && !use.written) return &use;
  return nullptr;
}

// The values, not the vectors: they have one dimension less than the matrix, a determinant two.
const TensorUse* values_of(const Op& op, const TensorUse& matrix, const TensorUse& read) {
  const std::size_t fewer = is_determinant(plain_name(op.name)) ? 2 : 1;
  for (const TensorUse& out : op.outputs)
    if (out.storage == read.storage && out.shape.size() + fewer == matrix.shape.size()) return &out;
  return nullptr;
}

// The decomposition that `made` is a part of, or is.
OpId decomposition(const Trace& trace, OpId made) {
  for (int depth = 0; made < trace.ops.size() && depth < 4; ++depth, made = trace.ops[made].parent) {
    const std::string name = plain_name(trace.ops[made].name);
    if (is_eigen(name) || is_singular_values(name) || is_determinant(name)) return made;
  }
  return kNone;
}

// Moves a value by no more than a bound that it is clamped to.
bool keeps_order(const std::string& name) {
  return one_of(name, {"clamp", "clamp_min", "clamp_max", "clip", "relu", "abs"});
}

double relative_rounding(const TensorUse& matrix) {
  return 8 * double(std::max<std::int64_t>(matrix.shape.back(), 1)) * sense::info(matrix.dtype).epsilon;
}

// Hadamard's bound, the largest determinant that entries of that size can have, times the rounding.
double rounding_of_determinant(const TensorUse& matrix) {
  const double size = double(matrix.shape.back());
  return std::pow(std::sqrt(size) * matrix.health.absmax, size) * relative_rounding(matrix);
}

// The call in which log |det| is computed: the second result of slogdet.
const Op* slogdet_of(const Trace& trace, OpId logdet) {
  for (OpId id = logdet; id < trace.ops.size(); ++id) {
    const Op& op = trace.ops[id];
    if (op.end_order > trace.ops[logdet].end_order) return nullptr;  // it began after logdet had ended
    if (one_of(plain_name(op.name), {"_linalg_slogdet", "linalg_slogdet"}) && op.outputs.size() >= 2) return &op;
  }
  return nullptr;
}

// C = X^T X / n: what it is a product of limits the rank.
std::int64_t rank_by_making(const Trace& trace, OpId reader, const TensorUse& matrix) {
  const TensorUse* at = &matrix;
  for (int step = 0; step < kSpectrumSteps; ++step) {
    const OpId made = producer(trace, reader, *at);
    if (made == kNone) return 0;
    const Op& op = trace.ops[made];
    const std::string name = plain_name(op.name);
    if (one_of(name, {"mm", "bmm", "matmul"})) {
      const Operand left = operand(op, "self", 0);
      if (!left.tensor || left.tensor->shape.size() < 2) return 0;
      const std::int64_t inner = left.tensor->shape.back(), outer = matrix.shape.back();
      return inner < outer ? inner : 0;
    }
    const Operand other = operand(op, "other", 1);
    const bool scaled = one_of(name, {"div", "mul", "true_divide"}) && other && other.numel() <= 1;
    const TensorUse* from = is_carrier(op) ? carried(op) : scaled ? operand(op, "self", 0).tensor : nullptr;
    if (!from) return 0;
    at = from, reader = made;
  }
  return 0;
}

}  // namespace

std::optional<Spectrum> spectrum_of(const Trace& trace, OpId reader, const TensorUse& use) {
  const TensorUse* at = &use;
  for (int step = 0; step < kSpectrumSteps; ++step) {
    OpId made = producer(trace, reader, *at);
    if (made == kNone) return std::nullopt;
    const OpId whole = decomposition(trace, made);
    if (whole != kNone) made = whole;
    const Op& op = trace.ops[made];
    const std::string name = plain_name(op.name);
    if (whole != kNone) {
      const TensorUse* matrix = matrix_of(op);
      const TensorUse* values = matrix ? values_of(op, *matrix, *at) : nullptr;
      if (!values || !values->health.ok() || values->health.numel == 0) return std::nullopt;
      Spectrum found;
      found.kind = is_determinant(name)       ? Spectrum::kDeterminant
                   : is_singular_values(name) ? Spectrum::kSingularValues
                                              : Spectrum::kEigenvalues;
      found.smallest = values->health.min;
      found.largest = values->health.absmax;
      found.size = matrix->shape.back();
      if (found.kind == Spectrum::kDeterminant) {
        if (found.size > kMostForDeterminant) return std::nullopt;
        found.largest = matrix->health.absmax;
        found.rounding = rounding_of_determinant(*matrix);
      } else {
        found.rounding = found.largest * relative_rounding(*matrix);
      }
      found.rank_at_most = rank_by_making(trace, made, *matrix);
      return found;
    }
    const Operand other = operand(op, "other", 1);  // as of a spectrum that is made to sum to 1
    const bool scaled = one_of(name, {"div", "mul", "true_divide"}) && other && other.numel() <= 1 && other.min() > 0;
    const TensorUse* from = is_carrier(op)                ? carried(op)
                            : keeps_order(name) || scaled ? operand(op, "self", 0).tensor
                                                          : nullptr;
    if (!from) return std::nullopt;
    at = from, reader = made;
  }
  return std::nullopt;
}

std::optional<Spectrum> logarithmic_determinant(const Trace& trace, OpId logdet) {
  const Op* const slogdet = slogdet_of(trace, logdet);
  const TensorUse* const matrix = slogdet ? matrix_of(*slogdet) : nullptr;
  if (!matrix || !matrix->health.ok() || matrix->shape.back() == 0) return std::nullopt;
  const TensorUse& logabsdet = slogdet->outputs[1];
  Spectrum found;
  found.kind = Spectrum::kDeterminant;
  found.smallest = -std::exp(logabsdet.health.min);
  found.largest = matrix->health.absmax;
  found.size = matrix->shape.back();
  found.rank_at_most = rank_by_making(trace, OpId(slogdet - trace.ops.data()), *matrix);
  if (found.size <= kMostForDeterminant) found.rounding = rounding_of_determinant(*matrix);
  if (found.rank_at_most == 0 && !found.singular()) return std::nullopt;
  return found;
}

std::string reported(const Spectrum& spectrum, sense::DType dtype) {
  const char* const what = spectrum.kind == Spectrum::kDeterminant      ? "the determinant"
                           : spectrum.kind == Spectrum::kSingularValues ? "singular values"
                                                                        : "eigenvalues";
  std::string text =
      std::string(what) + " of a matrix that is singular to the precision of " + dtype_name(dtype) + ": ";
  if (spectrum.kind == Spectrum::kDeterminant)
    text += "it is " + figure(spectrum.smallest) + ", of entries up to " + figure(spectrum.largest);
  else
    text += "the smallest is " + figure(spectrum.smallest) + ", the largest " + figure(spectrum.largest);
  if (spectrum.rank_at_most > 0)
    text += "; it is made of " + std::to_string(spectrum.rank_at_most) + " vectors in " +
            std::to_string(spectrum.size) + " dimensions, so that its rank is at most " +
            std::to_string(spectrum.rank_at_most);
  return text;
}

}  // namespace finitude::explain
