// From the JSON of a report to the structs of finitude/report.h.
#pragma once

#include "finitude/report.h"
#include "show/read.h"

namespace finitude::show {

// Total: what is missing or of another type reads as empty.
Alarm alarm_of(const Json& json);

}  // namespace finitude::show
