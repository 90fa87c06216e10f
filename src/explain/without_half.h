// The cause of a birth, half precision excluded: the step in float32 has failed too.
#pragma once

#include <optional>
#include <string_view>

#include "explain/finding.h"

namespace finitude::explain {

inline constexpr std::string_view kHalf = "half-precision";  // what the classes begin with

// Nothing: no other rule explains it.
std::optional<Finding> explain_without_half(const Evidence& evidence);

}  // namespace finitude::explain
