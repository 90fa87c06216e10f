#include "replay/tape_player.h"

#include <algorithm>

namespace finitude::replay {

bool Played::identical() const {
  return missing.empty() && why_not.empty() && !outcomes.empty() &&
         std::all_of(outcomes.begin(), outcomes.end(), [](const PlayedOutcome& o) { return o.same(); });
}

std::vector<std::string> Played::bad() const {
  std::vector<std::string> found;
  for (const PlayedOutcome& o : outcomes) {
    if (o.kind == "buffer" ? o.got_flaws.nan == 0 : o.got_flaws.finite()) continue;
    found.push_back(is_refused_value(o.kind, o.name) ? "value " + o.name
                    : o.kind == "loss"               ? o.kind
                                                     : o.kind + (o.kind == "gradient" ? " of " : " ") + o.name);
  }
  return found;
}

std::string outcome_of(const Played& played) {
  if (played.identical()) return "identical";
  if (!played.missing.empty()) return "operators of other libraries: " + played.missing.front();
  if (!played.why_not.empty()) return played.why_not;
  return played.outcomes.empty() ? "nothing to compare" : "other bits";
}

}  // namespace finitude::replay
