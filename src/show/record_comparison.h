// Text of a comparison of dumps: the document that compare/record_document.h makes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "show/show.h"

namespace finitude::show {

std::string record_comparison(const nlohmann::json& document, const TerminalOptions& options);

}  // namespace finitude::show
