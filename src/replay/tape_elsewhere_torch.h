// A step of one type of device played on another: which calls need no operator, and what represents operators that are
// not there.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>
#include <vector>

#include "capture/tape.h"
#include "replay/plain_call_torch.h"
#include "replay/tape_device_torch.h"

namespace finitude::replay {

// All that the call gave or drew is on the tape right behind it.
bool results_are_recorded(const capture::Tape& tape, std::size_t index);

// The operator has a kernel for the device that the step is played on.
bool is_here(const c10::OperatorHandle& op, const DeviceMap& map);

// Every result of the operator, in its order, by operations that every device has: what later calls read of them (a
// log-sum-exp, the gates of a cell) is what a form of theirs, or they themselves, want. Empty: not in this case, call
// the operator. Throws where it cannot be reported.
using DeviceForm = torch::jit::Stack (*)(const PlainCall&);
DeviceForm device_form(std::string_view op);  // null: there is none

// Words for the operators that exist on the device of the recording only, have no form, and whose results are not on
// the tape. operators: by Tape::operators.
std::vector<std::string> only_there(const capture::Tape& tape, const DeviceMap& map,
                                    const std::vector<c10::OperatorHandle>& operators);

// Parts of device_form().
DeviceForm attention_form(std::string_view op);
DeviceForm recurrent_form(std::string_view op);

}  // namespace finitude::replay
