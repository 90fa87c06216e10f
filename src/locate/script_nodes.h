// TorchScript differentiates a function as a whole: one node runs the derivatives of all its operators.
#pragma once

#include "record/trace.h"

namespace finitude::locate {

// Gives the operators of such a node the nodes that autograd would have had for them ("SqrtBackward0"), with the
// forward operators that they belong to. Which derivative it is, their stacks say (Stack::statement_context); which
// call, the memory that both know.
void split_script_nodes(record::Trace* trace);

}  // namespace finitude::locate
