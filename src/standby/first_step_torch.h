// A trace and a tape of the first step, for programs in which nothing could run it again (see first_step.py): on from
// before it begins until it is over. GIL held for all of it.
#pragma once

namespace finitude::bindings {

// From here on until the next step is over, begun again where that is on already. False: another trace is under way.
// The tape, which asks the tracer for the operator that has begun, is started behind it.
bool trace_first_step();
// Was everything since then traced?
bool has_traced_first_step();
// What was taken down of it is let go of, if anything was.
void first_step_over();

}  // namespace finitude::bindings
