#include "replay/keep_tape_torch.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

// Whether a replay of it comes to the same bits; only where that is quick.
std::string tried(const capture::Tape& tape, std::uint64_t below_bytes) {
  if (capture::capsule_bytes(tape) > below_bytes) return "not tried";
  const Played played = play(tape, {});
  if (played.identical()) return "identical";
  if (!played.missing.empty()) return "operators of other libraries: " + played.missing.front();
  if (!played.why_not.empty()) return played.why_not;
  return played.outcomes.empty() ? "nothing to compare" : "other bits";
}

}  // namespace

void tell_sources(capture::Tape& tape, const LineText& line) {
  if (!line) return;
  for (capture::Place& place : tape.places) place.source = line(place.file, place.line);
}

Kept keep_tape(capture::Tape tape, const std::string& folder, nlohmann::json about, const capture::CapsuleOptions& options,
               std::uint64_t replay_below, const LineText& line, std::vector<capture::NamedTensor> start) {
  Kept kept;
  try {
    if (!tape.gaps.empty() && !options.redact) {
      kept.why_not = tape.gaps.front();
      return kept;
    }
    if (!options.redact) tell_sources(tape, line);
    kept.replayed = tried(tape, replay_below);
    about["replay"] = kept.replayed;
    if (const std::string* autocast = tape.setting("autocast")) about["flags"]["autocast"] = *autocast;
    kept.why_not = capture::write_capsule(folder, std::move(tape), std::move(about), options, std::move(start)).why();
    if (!kept.why_not.empty()) kept.why_not = "its folder " + kept.why_not;
  } catch (const std::exception& e) {
    kept.why_not = e.what();
  }
  return kept;
}

}  // namespace finitude::replay
