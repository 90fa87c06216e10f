// Infinities of the data that the program drops again on purpose.
#pragma once

#include "locate/birth.h"

namespace finitude::locate {

// What brought in the values of births in `located` that are nothing but infinities of the data and that the
// program takes out again: torch.where or an index chooses others in forward, and only backward, which still
// runs through the branch that was not taken, makes damage of them; an activation hides them there, and the program
// asks whether they are infinite; or a mask of zeros is multiplied on, just
// where they are. An infinity that nothing drops is bad data.
Meant dropped_by_program(const record::Trace& trace, const Located& located);

// The opposite: did `writer` put numbers over a part of memory that held other data, so that `reader` does
// not see a mask or a table of nothing yet? Not of values that a model computed.
bool overwrites_data(const record::Trace& trace, record::OpId writer, record::OpId reader);

// Mixes each element that it reads with others: no mask is meant for it. Not where zeros that it also reads
// take infinities out.
bool spreads(const record::Op& op);

// Takes infinities for elements that are not there.
bool is_for_masks(const record::Op& op);

}  // namespace finitude::locate
