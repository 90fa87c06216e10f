// What is noticed of a training while its values are still finite (src/signal), step by step. GIL held for all of it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include "record/ring_format.h"

namespace finitude::bindings {

struct OptimizerEntry;

// An applied step. True: there is something to say, which `warn` says. Nothing is allocated in the steady state.
bool watch_signals(const OptimizerEntry& entry, const record::StepRecord& step, bool has_marks);
// Hands the warnings to native_callbacks.on_warning(optimizer, JSON). False: with a Python error for the program.
bool warn(OptimizerEntry& entry);
// What is known of the optimizer with that ordinal anyway, given the largest gradient of its last step. NaN: not known.
struct StepFigures {
  double headroom_bits;    // to the largest number of the narrowest dtype among its gradients
  double gradient_growth;  // how many times the median of the first steps that gradient is
};
StepFigures figures_of(std::uint32_t ordinal, double grad_absmax);
void forget_signals_of(const OptimizerEntry& entry);
void forget_signals();
// Off: nothing is looked at any more, and what is kept is let go of. norm_limit: a 2-norm of all gradients above it is
// reported; 0: none is.
void set_signals(bool on, double norm_limit);

}  // namespace finitude::bindings
