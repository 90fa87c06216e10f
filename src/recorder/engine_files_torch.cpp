// What the recorder leaves on disk: capsules as they come, the report after every alarm and at the end.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "capture/capsule_folder_posix.h"
#include "capture/capsule_queue_posix.h"
#include "recorder/engine_torch.h"
#include "show/show.h"

namespace finitude::recorder {

using nlohmann::json;

namespace {

constexpr std::chrono::seconds kQuiet{2};  // a small capsule takes less, with its replay

std::string capsule_of(std::uint64_t step) { return "a capsule of step " + std::to_string(step) + ": "; }

// A program that ends by exit() need not come to finish(): what is under way gets a minute then.
void wait_at_exit() {
  static const bool once = [] { return std::atexit([] { (void)capture::CapsuleQueue::get().wait(60); }) == 0; }();
  (void)once;
}

std::string printed(const json& document) {
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

bool Engine::has_folder() {
  if (!folder_.empty() || options_.runs.empty() || !no_folder_.empty()) return !folder_.empty();
  const Result<std::string> made = make_folder(options_.runs, document_.process().program);
  if (made.ok())
    folder_ = *made;
  else
    no_folder_ = made.why();
  return made.ok();
}

void Engine::write_capsule(Watched& watched, incident::Alarm& alarm, SecondRun& run) {
  if (!has_folder()) return;
  char name[64];
  std::snprintf(name, sizeof name, "step-%06llu", static_cast<unsigned long long>(alarm.step));
  const std::string optimizer = watched.ordinal() == 0 ? "" : "-optimizer-" + std::to_string(watched.ordinal());
  std::string path = free_name(folder_, name + optimizer);
  for (int i = 2; pending_.contains(path); ++i) path = free_name(folder_, name + optimizer + "-" + std::to_string(i));
  const std::uint64_t step = alarm.step;
  json about = about_capsule(alarm, document_, options_.redact);
  const bool beside =
      options_.on_alarm == OnAlarm::kSkip || options_.on_alarm == OnAlarm::kWarn;  // training continues meanwhile
  const std::string why =
      beside ? run.keep_beside(path, std::move(about), options_) : run.keep(path, std::move(about), options_);
  if (!why.empty()) {
    document_.not_watched(capsule_of(step) + why);
    return;
  }
  alarm.capsule = path;
  if (options_.redact) alarm.capsule_redacted = true;
  if (beside) {
    wait_at_exit();
    alarm.capsule_pending = true;
    pending_[path] = step;
    return;
  }
  capture::keep_newest(folder_, options_.capsules, path);
  say_left_behind(capture::settle_left_behind(options_.runs, capture::is_whole_capsule));
}

void Engine::say_left_behind(const std::vector<capture::LeftBehind>& left) const noexcept {
  for (const capture::LeftBehind& one : left) {
    say(one.kept_as.empty()
            ? "finitude: removed " + one.folder + ": a part of a capsule, of a run that was killed\n"
            : "finitude: " + one.kept_as + ": a whole capsule of a run that was killed has its name now\n");
  }
}

void Engine::settle_capsules() {
  if (pending_.empty()) return;
  const auto mine = [&](const std::string& folder) { return pending_.contains(folder); };
  for (const capture::CapsuleDone& done : capture::CapsuleQueue::get().take_done(mine)) {
    const std::uint64_t step = pending_[done.folder];
    pending_.erase(done.folder);
    say_left_behind(done.left_behind);
    document_.settle_capsule(done.folder, done.why_not);
    if (done.why_not.empty()) continue;
    document_.not_watched(capsule_of(step) + "its folder " + done.why_not);
    say("finitude: step " + std::to_string(step) + " leaves no capsule: its folder " + done.why_not + "\n");
  }
}

void Engine::finish_capsules() {
  const auto began = std::chrono::steady_clock::now();
  bool reported = false;
  for (settle_capsules(); !pending_.empty(); settle_capsules()) {
    if (!capture::CapsuleQueue::get().wait(0.05)) {
      if (reported || std::chrono::steady_clock::now() - began < kQuiet) continue;
      reported = true;
      say("finitude: finishing the capsule of step " + std::to_string(pending_.begin()->second) + "\n");
      continue;
    }
    settle_capsules();
    for (const auto& [folder, step] :
         std::exchange(pending_, {})) {  // of a process that was forked meanwhile: its parent writes them
      document_.settle_capsule(folder, "");
      (void)step;
    }
  }
}

Status Engine::write_reports() {
  Status status;
  settle_capsules();
  if (!has_folder() && !no_folder_.empty()) status = Status(StatusCode::kUnwritable, no_folder_);
  if (folder_.empty() && options_.report.empty()) return status;
  const json document = whole_report();
  const std::string text = printed(document);
  if (!folder_.empty()) {
    status = write_file(folder_ + "/report.json", text);
    if (status.ok()) status = write_file(folder_ + "/report.html", show::html(document));
  }
  if (options_.report.empty()) return status;
  const Status further = write_file(options_.report, text);
  return status.ok() ? further : status;
}

void Engine::report_unwritten(const Status& status) {
  if (status.ok() || reported_unwritten_) return;
  reported_unwritten_ = true;
  say("finitude: warning: " + status.why() + "\n");
}

json Engine::report() {
  safely([&] { settle_capsules(); });
  return whole_report();
}

std::string Engine::text() {
  safely([&] { settle_capsules(); });
  return show::terminal(whole_report(), {});
}

Status Engine::finish() {
  if (finished_) return {};
  finished_ = true;
  Status status;
  safely([&] {
    finish_capsules();
    close_store();
    status = write_reports();
    report_unwritten(status);
    std::error_code error;
    const std::string place = !folder_.empty() ? folder_ + "/report.json" : options_.report;
    const std::string page = folder_.empty() || !status.ok() ? "" : "report.html";  // in the same folder
    const std::string relative = place.empty() ? "" : std::filesystem::relative(place, error).string();
    say(document_.closing_line(whole_report(),
                               !error && !relative.empty() && relative.size() < place.size() ? relative : place, page));
  });
  on_ = false;
  return status;
}

}  // namespace finitude::recorder
