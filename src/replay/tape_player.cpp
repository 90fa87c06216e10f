#include "replay/tape_player.h"

#include <algorithm>

namespace finitude::replay {

bool Played::identical() const {
  return missing.empty() && why_not.empty() && !outcomes.empty() &&
         std::all_of(outcomes.begin(), outcomes.end(), [](const PlayedOutcome& o) { return o.same(); });
}

}  // namespace finitude::replay
