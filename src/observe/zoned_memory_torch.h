// Guard zones around the memory of all CPU tensors, in a second process that looks for a write out of bounds.
#pragma once

#include <vector>

#include "record/guard_damage.h"

namespace finitude::observe {

// From now on, for the life of the process: every CPU tensor gets memory with guard zones. Not to be called in a
// process whose results matter: it takes memory and time. Memory that was handed out before stays as it is.
void guard_memory();
bool guards_memory() noexcept;

// An op of the trace begins or ends. Looks at all zones; nothing where memory is not guarded. Any thread.
void look_at_guards(record::OpId op, bool at_end) noexcept;

std::vector<record::GuardDamage> guard_damages();

}  // namespace finitude::observe
