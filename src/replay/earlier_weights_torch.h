// The step played on the weights that it would have had, had the last update of the optimizer been smaller.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "replay/edit.h"

namespace finitude::replay {

// What the last update added to the parameters.
struct LastUpdate {
  struct Change {
    std::string name;              // of the parameter, as the tape has it
    at::Tensor parameter, before;  // as it is now; its values before that update
  };
  std::vector<Change> changes;
  std::string why_not;  // where it is not known
};
using FindLastUpdate = std::function<LastUpdate()>;

// share: of the update that stays. Does not run where the step reads none of these parameters, or a parameter of it
// that is not among them.
StepTrial play_on_earlier_weights(const capture::Tape& tape, const LastUpdate& update, double share);

// Root mean square of what the update changed over that of the values before it: the median over the weights of two
// dimensions or more, or over all parameters where there are none. Parameters that were zero do not count. 0: not
// known.
double relative_size(const LastUpdate& update);

}  // namespace finitude::replay
