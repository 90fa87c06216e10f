// Evidence in; cause, confidence and fix out.
#pragma once

#include <memory>
#include <vector>

#include "explain/finding.h"

namespace finitude::explain {

// The ordered list of all rules (rule_list.cpp).
const std::vector<std::unique_ptr<Rule>>& rules();

// The best finding over all rules; cause_class "unknown" where none speaks.
Finding explain(const Evidence& evidence);

}  // namespace finitude::explain
