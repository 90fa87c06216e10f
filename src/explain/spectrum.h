// Eigenvalues, singular values and the determinant of a matrix that is singular: what a log, a root or a division then
// reads at zero, or beyond it by rounding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "explain/evidence.h"

namespace finitude::explain {

struct Spectrum {
  enum Kind { kEigenvalues, kSingularValues, kDeterminant } kind = kEigenvalues;
  double smallest = 0, largest = 0;  // the largest by magnitude; of the entries, for a determinant
  double rounding = 0;               // what the decomposition cannot distinguish from zero
  std::int64_t size = 0;             // of the matrix
  std::int64_t rank_at_most = 0;     // a product of thin factors; 0: nothing in its making limits the rank

  // The smallest is zero up to rounding. Where it is further below, the matrix is not singular but indefinite.
  bool singular() const { return smallest <= 0 && smallest >= -rounding; }
};

// Of what `reader` reads in `use`, where that is such values, taken as they are or clamped.
std::optional<Spectrum> spectrum_of(const record::Trace& trace, record::OpId reader, const record::TensorUse& use);

// Of a call of logdet, slogdet or of what they are made of, whose determinant is no more than the rounding of the
// factorisation: smaller than what the entries can round to, or of a product of thin factors. The sign says nothing
// then. Empty where the determinant is a number.
std::optional<Spectrum> logarithmic_determinant(const record::Trace& trace, record::OpId logdet);

// "eigenvalues of a matrix that is singular ...", with what limits its rank.
std::string reported(const Spectrum& spectrum, sense::DType dtype);

}  // namespace finitude::explain
