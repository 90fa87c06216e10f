#include "replay/keep_tape_torch.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "capture/capsule_queue_posix.h"
#include "capture/keep_parts.h"
#include "replay/replay_process_posix.h"
#include "replay/tape_player.h"

namespace finitude::replay {
void report_sources(capture::Tape& tape, const LineText& line) {
  if (!line) return;
  for (capture::Place& place : tape.places) place.source = line(place.file, place.line);
}

namespace {

// Of a tape that can be a capsule: whether a replay is to be tried.
bool prepare(capture::Tape& tape, nlohmann::json& about, bool redact, std::uint64_t replay_below, const LineText& line,
             std::string* why_not) {
  if (!tape.gaps.empty() && !redact) {
    *why_not = tape.gaps.front();
    return false;
  }
  if (!redact) report_sources(tape, line);
  if (!redact) capture::keep_parts(tape);  // what is replayed is what is written
  if (const std::string* autocast = tape.setting("autocast")) about["flags"]["autocast"] = *autocast;
  about["replay"] = "not tried";
  return capture::capsule_bytes(tape) - tape.statistics.size() <= replay_below;
}

std::string reported_of_folder(const std::string& why_not) { return why_not.empty() ? "" : "its folder " + why_not; }

}  // namespace

Kept keep_tape(capture::Tape tape, const std::string& folder, nlohmann::json about,
               const capture::CapsuleOptions& options, std::uint64_t replay_below, const LineText& line,
               std::vector<capture::NamedTensor> start) {
  Kept kept;
  try {
    const bool tries = prepare(tape, about, options.redact, replay_below, line, &kept.why_not);
    if (!kept.why_not.empty()) return kept;
    if (tries) about["replay"] = outcome_of(play(tape, {}));
    kept.replayed = about["replay"];
    kept.why_not = reported_of_folder(
        capture::write_capsule(folder, std::move(tape), std::move(about), options, std::move(start)).why());
  } catch (const std::exception& e) {
    kept.why_not = e.what();
  }
  return kept;
}

std::string keep_tape_beside(capture::Tape tape, const KeptBeside& beside, nlohmann::json about,
                             const capture::CapsuleOptions& options, std::uint64_t replay_below, const LineText& line,
                             std::vector<capture::NamedTensor> start) {
  std::string why_not;
  try {
    const bool tries = prepare(tape, about, options.redact, replay_below, line, &why_not);
    if (!why_not.empty()) return why_not;
    capture::CapsuleJob job;
    // Another process would need a context of its own on the device, in memory that the program may be about to ask
    // for. Nor can it replay what was redacted.
    const bool at_once =
        tries && (tape.devices.size() > 1 || options.redact || (beside.replay_here && beside.player.empty()));
    if (at_once) about["replay"] = job.replayed = outcome_of(play(tape, {}));
    why_not = reported_of_folder(
        capture::draft_capsule(std::move(tape), std::move(about), options, std::move(start), &job.draft).why());
    if (!why_not.empty()) return why_not;
    job.draft.let_go_of_start();
    job.folder = beside.folder;
    job.runs = beside.runs;
    job.keep = beside.keep;
    auto& queue = capture::CapsuleQueue::get();
    if (tries && !at_once && !beside.player.empty()) {
      job.tried = [player = beside.player, over = &queue.given_up()](const std::string& written) {
        return replayed_apart(player, written, over);
      };
    }
    if (!queue.add(std::move(job), options.max_bytes, beside.interrupted))
      why_not = "the program was interrupted while it waited for those before";
  } catch (const std::exception& e) {
    why_not = e.what();
  }
  return why_not;
}

}  // namespace finitude::replay
