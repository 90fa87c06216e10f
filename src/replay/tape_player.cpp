#include "replay/tape_player.h"

#include <algorithm>
#include <cstdio>

namespace finitude::replay {

bool Played::identical() const {
  return missing.empty() && why_not.empty() && !outcomes.empty() &&
         std::all_of(outcomes.begin(), outcomes.end(), [](const PlayedOutcome& o) { return o.same(); });
}

Told tell(const Played& played, const capture::Tape& tape) {
  Told told;
  for (const std::string& gap : tape.gaps) told.text += "the tape has a gap: " + gap + "\n";
  if (!played.missing.empty()) {
    told.text += "the step calls operators that cannot be called here:";
    for (const std::string& name : played.missing) told.text += " " + name;
    told.text += "\n";
    told.code = 4;
    return told;
  }
  told.code = played.identical() ? 0 : 1;
  if (!played.why_not.empty()) {
    told.text += "not reproduced: " + played.why_not + "\n";
    return told;
  }
  if (played.outcomes.empty()) {
    told.text += "replayed, but there is nothing on the tape to compare with\n";
    return told;
  }
  std::size_t same = 0;
  for (const PlayedOutcome& outcome : played.outcomes) {
    same += outcome.same();
    if (!outcome.same()) told.text += "differs: " + outcome.kind + " " + outcome.name + "\n";
  }
  char line[160];
  std::snprintf(line, sizeof line, "%s: %zu of %zu results have the same bits; %zu calls, %.3f ms\n",
                told.code == 0 ? "identical" : "not reproduced", same, played.outcomes.size(), played.calls,
                played.seconds * 1e3);
  told.text += line;
  return told;
}

}  // namespace finitude::replay
