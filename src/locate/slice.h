// From a poisoned sink back through data flow to the ops where non-finite values were born.
#pragma once

#include <vector>

#include "locate/birth.h"
#include "record/trace.h"

namespace finitude::locate {

Located locate(const record::Trace& trace);

// Of what was absorbed: infinities that an op made of finite inputs and arithmetic took in, leaving zeros (1 / Inf,
// rsqrt, exp of -Inf). For a step whose gradients vanished with no bad value anywhere.
std::vector<Birth> swallowed_overflows(const record::Trace& trace, const Located& located);

}  // namespace finitude::locate
