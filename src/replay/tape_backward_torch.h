// The backward of a call on a tape, by autograd: the tape has the operators inside of a node only, and a script that
// shows a bad derivative shows the call that it is the derivative of.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "replay/tape_player.h"

namespace finitude::replay {

struct BackwardCall {
  std::size_t index = 0;  // of the call of forward
  std::optional<c10::FunctionSchema> schema;
  std::vector<c10::IValue> arguments;     // as forward had them
  std::vector<std::vector<bool>> leaves;  // by argument, and by tensor of a list: is its gradient asked for?
  std::vector<bool> written;              // arguments that the operator writes
  std::size_t results = 0, result = 0;    // how many it gives; of which of them the gradient is
  at::Tensor gradient;
  bool is_random = false;  // the operator may draw random numbers
};

// birth: a call of a backward node of that name (empty: any). One whose gradient is not finite, though it comes of
// finite values, by the gradient that the node was given in the step. None: no such call is on the tape, or autograd
// takes another way. Plays the tape once.
std::optional<BackwardCall> backward_of(const capture::Tape& tape, std::size_t birth, const std::string& node,
                                        const PlayOptions& options);

}  // namespace finitude::replay
