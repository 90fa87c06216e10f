// Which results of an operator anybody but its own derivative reads.
#pragma once

#include <cstddef>

#include "record/trace.h"

namespace finitude::locate {

// False for notes that an operator keeps for its backward: not its first result, not given to the program,
// and read by nothing but its own node (the alphas of ctc_loss, the statistics of a fused normalisation, the
// workspace of a recurrent cell). A kernel may leave elements of such memory unwritten.
bool flows_on(const record::Trace& trace, record::OpId op, std::size_t output);

}  // namespace finitude::locate
