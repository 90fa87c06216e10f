// What explains a step whose tensors had guard zones around their memory, where one of them was damaged.
#pragma once

#include <optional>
#include <vector>

#include "explain/finding.h"
#include "record/guard_damage.h"
#include "record/trace.h"

namespace finitude::explain {

// Of the first damage; nothing where there is none. `born_in`: the op at which it was seen.
std::optional<Finding> finding_of_damage(const std::vector<record::GuardDamage>& damages, const record::Trace& trace);

}  // namespace finitude::explain
