// A softmax or logsumexp that the program writes out of exp, sum, and a division or a logarithm.
#pragma once

#include "explain/edits.h"
#include "record/trace.h"

namespace finitude::explain {

// The sum by which the exponentials that `exp` gives are divided, in a softmax that the program writes out; kNone:
// there is none, or shapes and views do not show along which dimensions it sums.
record::OpId sum_of_softmax(const record::Trace& trace, record::OpId exp);

// log(sum(exp(x))), a logsumexp that the program writes out: both calls; where nothing else reads the exponentials.
struct LogOfSum {
  record::OpId sum = record::kNone, log = record::kNone;
};
LogOfSum log_of_sum(const record::Trace& trace, record::OpId exp);

// Where `exp` is of either: the edit of `edits`, which are of that call, that subtracts the maximum of its exponents.
void add_less_maximum(Edits& edits, const record::Trace& trace, record::OpId exp);

}  // namespace finitude::explain
