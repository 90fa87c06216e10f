// Takes the values out of a tape.
#pragma once

#include <nlohmann/json.hpp>

#include "capture/tape.h"

namespace finitude::capture {

// Statistics of the traced run lose their lines and arguments; unreadable ones go.
// Inputs, constants, numbers and states of generators go; operators, shapes and names stay. Statistics of the
// named inputs come back: name -> numel, nan, inf, zero, min, max. Such a tape says what ran, and cannot be
// replayed.
nlohmann::json redact(Tape& tape);

// The same of the report of an alarm: no line, no value, no range that gives values away.
void redact_alarm(nlohmann::json& alarm);

}  // namespace finitude::capture
