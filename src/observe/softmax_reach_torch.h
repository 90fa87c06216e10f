// The largest magnitude that a softmax is given while a step is computed: in a loss, and in attention. For single
// steps: while one is looked at, torch hands each operator's arguments to a callback.
#pragma once

namespace finitude::observe {

// Negative: nothing was seen that can be read. At most 2^20 values of a tensor are read, in rows that lie evenly.
struct SoftmaxReach {
  double logits = -1;     // into log_softmax, of a cross-entropy as well
  double attention = -1;  // into softmax over the last of three dimensions and more; of fused attention, that of the
                          // query with the largest norm of each head, with all keys
};

// From here on, in all threads. GIL held for both. Nothing where it is on already.
void begin_softmax_reach();
SoftmaxReach end_softmax_reach() noexcept;

}  // namespace finitude::observe
