// In which arguments that are no tensors two calls differ.
#pragma once

#include <utility>
#include <vector>

#include "compare/run.h"

namespace finitude::compare {

// Of one schema, so that they have the same arguments. In traces overloads are not known.
bool one_form(const Call& a, const Call& b);
// Those that differ, as A and as B has them; the text of one that a side does not have is empty.
std::vector<std::pair<Scalar, Scalar>> other_arguments(const Call& a, const Call& b);

}  // namespace finitude::compare
