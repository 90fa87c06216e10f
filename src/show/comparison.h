// The outcome of `finitude diff` as text; src/compare/document.h makes the document.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "show/show.h"

namespace finitude::show {

// Most important first: the divergence, what is on one side only, arguments, inputs, environment. Ends in a
// newline.
std::string comparison(const nlohmann::json& document, const TerminalOptions& options);

}  // namespace finitude::show
