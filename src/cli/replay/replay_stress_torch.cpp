#include "cli/replay/replay_stress_torch.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/pinned_core_posix.h"
#include "cli/replay/replay_exit.h"
#include "replay/core_plays_posix.h"
#include "replay/core_votes.h"
#include "replay/tape_device_torch.h"
#include "replay/tape_player.h"

namespace finitude::cli {
namespace {

std::string player_of(const ReplayOptions& options) {
  if (!options.player.empty()) return options.player;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

replay::CoreTask task_of(const capture::Tape& tape, std::size_t times, bool on_devices) {
  replay::CoreTask task;
  for (const capture::Outcome& outcome : tape.outcomes) {
    task.results.push_back(outcome.kind + (outcome.name == outcome.kind ? "" : " " + outcome.name));
    task.recorded.push_back(outcome.checksum);
  }
  task.times = times;
  if (on_devices) task.kind = "GPU";
  return task;
}

std::vector<std::string> words_of(const ReplayOptions& options) {
  std::vector<std::string> words;
  for (const std::string& space : options.play.namespaces) words.insert(words.end(), {"--allow", space});
  for (const std::string& file : options.libraries) words.insert(words.end(), {"--library", file});
  if (options.play.deterministic) words.emplace_back("--deterministic");
  if (!options.play.device.empty()) words.insert(words.end(), {"--device", options.play.device});
  return words;
}

}  // namespace

int run_stress(const ReplayOptions& options, const capture::Tape& tape, const replay::Say& out,
               const replay::Say& err) {
  if (tape.outcomes.empty()) {
    err("there is nothing on the tape to compare\n");
    return kCannotHere;
  }
  const replay::DeviceMap devices = replay::map_devices(tape, options.play.device);
  if (!devices.missing.empty()) {
    err(devices.missing + "\n");
    return kCannotHere;
  }
  const bool on_devices = capture::device_type(devices.target) == "cuda";
  replay::CoreTest test;
  test.player = player_of(options);
  test.capsule = std::filesystem::absolute(options.capsule).string();
  test.words = words_of(options);
  if (on_devices) test.devices = static_cast<int>(replay::device_count("cuda"));
  if (!on_devices) test.cores = base::allowed_cores();
  constexpr int kTimes = 4, kSeconds = 600;
  test.times = static_cast<std::size_t>(options.times > 0 ? options.times : kTimes);
  test.seconds = options.timeout > 0 ? options.timeout : kSeconds;
  test.shows_progress = options.shows_progress && replay::is_seen_at_once();
  const replay::CoreRun run = replay::play_on_cores(test);
  const replay::Reported reported = replay::judge_cores(run.cores, task_of(tape, test.times, on_devices));
  out(reported.text);
  if (!run.stopped.empty()) err(run.stopped + "\n");
  return reported.code;
}

int play_on_core(const ReplayOptions& options, const capture::Tape& tape, const replay::Say& out,
                 const replay::Say& err) {
  if (!replay::settle_on_core(*options.on_core)) {
    err("this process cannot be put on core " + std::to_string(*options.on_core) + "\n");
    return kCannotHere;
  }
  replay::PlayOptions play = options.play;
  play.threads = 1;
  for (int i = 0; i < std::max(options.times, 1); ++i) {
    const replay::Played played = replay::play(tape, play);
    replay::CorePlay one;
    if (!played.missing.empty()) one.failure = played.missing.front();
    if (!played.why_not.empty()) one.failure = played.why_not;
    for (const replay::PlayedOutcome& outcome : played.outcomes) one.checksums.push_back(outcome.got);
    out(replay::play_line(one));
    std::fflush(stdout);  // the other end of the pipe waits for it
  }
  return kDone;
}

}  // namespace finitude::cli
