// Updates that are out of proportion to the weights: the first link of a chain that ends in any overflow.
#pragma once

#include <optional>
#include <string>

#include "explain/finding.h"
#include "replay/edit.h"

namespace finitude::explain {

// The step whose loss rose by orders of magnitude, though neither the rate nor the gradient of the step before it were
// beyond what had been usual, as a sentence: then no update has done it, but what that step was given. "": there is
// none.
std::string outlier_before(const StepHistory& history);
inline constexpr const char* kOutlierFix =
    "look at the batch of that step, and clip gradients (torch.nn.utils.clip_grad_norm_), so that one batch cannot "
    "take the weights away";

// The loss grew by orders of magnitude, more with each step, while learning rate x gradient came to next to nothing of
// the weights: something else than the updates grows, and weights that are large at the end follow from it.
bool grew_without_updates(const StepHistory& history);

// Weights that became many times as large within the first steps of a run.
struct WeightGrowth {
  double from = 0, to = 0;
  std::size_t steps = 0;  // that were applied; 0: within the traced step, the first one, by an optimizer with a closure
};
std::optional<WeightGrowth> grown_in_few_steps(const StepHistory& history, const record::Trace& trace);
// "weights grew from 0.25 to 5121 in 3 steps"
std::string growth_in_words(const WeightGrowth& grown);

// The largest magnitude among the parameters that the step reads.
double parameters_now(const record::Trace& trace);

// " at a learning rate of 0.5", of the last `steps` applied steps; empty where it is not known.
std::string rates_of(const StepHistory& history, std::size_t steps);

// Weights that became a thousand times as large since the start are the first link of what they overflow in, however
// many steps it took: a change of that operation would not keep the run alive. birth: that operation; one that reads
// nothing which weights have made would fail with any weights.
void judge_grown_weights(Finding& finding, const StepHistory& history, const record::Trace& trace, record::OpId birth);

// The last update, as far as it is known.
struct UpdateTrials {
  double ratio = 0;                    // of its size to that of the weights before it; 0: not known
  replay::StepTrial without, smaller;  // what the step came to without it, and with a tenth of it
};

// Whether the step without its last update would settle that the cause is the learning rate: the update is out of
// proportion to the weights, or they grew many times within few steps.
bool may_be_rate(const Finding& finding, const StepHistory& history, const record::Trace& trace, double ratio);

// Where that step is finite the cause is the learning rate, and the overflow or singular point that the step met first
// is its sign. A fix of that operation is withdrawn.
void judge_last_update(Finding& finding, const StepHistory& history, const record::Trace& trace,
                       const UpdateTrials& trials);

}  // namespace finitude::explain
