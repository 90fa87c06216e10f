// `finitude selftest` only: a value is overwritten in the program's own step, as a fault of an operator would do it.
#pragma once

#include <pybind11/pybind11.h>

namespace finitude::bindings {

// _native.inject_start(decide, first, last)
//     From now on `decide` is called at the end of every operator while the optimizer that is furthest has taken
//     `first` to `last` steps. It gets (op, phase, node, node_key, makes, results, run):
//     - phase: "forward", "backward", "optimizer", "data", by what the engine calls;
//     - node: the name of the backward node that the op runs in, or None; node_key: its number;
//     - makes: numbers of the nodes that this op has made;
//     - results: for each tensor that it gave or wrote, the number of elements; 0: it has no floating-point memory of
//     its
//       own that this very op has computed (a view, an op inside of this one did);
//     - run: changes when a step is run again under the tracer.
//     Its answer is None, or (result, element, value): that element is overwritten; or (result, element, None, bit):
//     that bit of it changes, where its memory is the CPU's.
//     To be called before anything observes the step: observers then see the value as the op's own.
// _native.inject_stop()
// _native.inject_write(tensor, element, value)
// _native.inject_flip(tensor, element, bit)
// _native.inject_steps(): [(ordinal, class, steps taken)] of the watched optimizers.
//
// Nothing here runs unless inject_start was called. `decide` is called with the GIL, from whatever thread runs the op;
// if it raises, the injection is switched off and says so on stderr.
void define_inject(pybind11::module_& m);

// A step is about to run again under the tracer.
void note_trace_begun() noexcept;

}  // namespace finitude::bindings
