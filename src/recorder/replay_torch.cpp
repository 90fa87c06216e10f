#include <nlohmann/json.hpp>

#include "capture/recorded_step.h"
#include "finitude/replay.h"
#include "replay/tape_device_torch.h"
#include "replay/tape_player.h"
#include "replay/tape_verdict.h"

#include <exception>

namespace finitude {
namespace {

Replay::Verdict word(replay::Verdict verdict) {
  switch (verdict) {
    case replay::Verdict::kIdentical:
      return Replay::Verdict::kIdentical;
    case replay::Verdict::kSameClass:
      return Replay::Verdict::kSameClass;
    case replay::Verdict::kPersistent:
      return Replay::Verdict::kPersistent;
    case replay::Verdict::kTransient:
      return Replay::Verdict::kTransient;
    case replay::Verdict::kOrderDependent:
      return Replay::Verdict::kOrderDependent;
    case replay::Verdict::kNothing:
      return Replay::Verdict::kNothing;
    case replay::Verdict::kCannot:
      return Replay::Verdict::kCannot;
    case replay::Verdict::kFailed:
      break;
  }
  return Replay::Verdict::kFailed;
}

}  // namespace

Result<Replay> replay_capsule(const std::string& path, const ReplayOptions& options) try {
  nlohmann::json about = nlohmann::json::object();
  capture::Tape tape;
  if (const Status status = capture::read_recorded_step(path, &about, &tape); !status.ok()) return status.of(path);
  if (about.contains("redacted") && about["redacted"] != false)
    return Status(StatusCode::kUnsupported, path + " was made with redact: it has no values, so it cannot be replayed");
  replay::PlayOptions play;
  play.namespaces.insert(play.namespaces.end(), options.allow.begin(), options.allow.end());
  play.threads = options.threads;
  play.deterministic = options.deterministic;
  std::vector<replay::Played> runs{replay::play(tape, play)};
  while (!replay::is_decided(runs)) runs.push_back(replay::play(tape, play));
  Replay result;
  result.verdict = word(replay::judge(runs));
  result.text =
      replay::report_devices(tape, replay::map_devices(tape, ""), false) + replay::report_runs(runs, tape).text;
  result.calls = runs.front().calls;
  result.seconds = runs.front().seconds;
  for (const auto& outcome : runs.front().outcomes)
    result.outcomes.push_back({outcome.kind, outcome.name, outcome.same()});
  return result;
} catch (const std::exception& e) {
  return Status(StatusCode::kUnsupported, path + " cannot be replayed: " + e.what());
}

}  // namespace finitude
