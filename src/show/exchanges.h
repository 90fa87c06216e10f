// Through which exchange between ranks a bad value came, or was given to others.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "record/trace.h"

namespace finitude::show {

// The "exchanges" of a birth: of one that is an exchange, itself; of another, those that were given a bad value in that
// step. All ranks of a group issue its exchanges in the same order, so that the number is the same on each.
nlohmann::json exchanges(const record::Trace& trace, record::OpId birth);

}  // namespace finitude::show
