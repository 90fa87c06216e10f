// What the recorder leaves on disk: capsules as they come, the report after every alarm and at the end.
#include <cstdio>
#include <filesystem>

#include "capture/capsule_folder_posix.h"
#include "recorder/engine_torch.h"
#include "show/show.h"

namespace finitude::recorder {

using nlohmann::json;

namespace {

std::string printed(const json& document) { return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n"; }

}  // namespace

bool Engine::has_folder() {
  if (!folder_.empty() || options_.runs.empty() || !no_folder_.empty()) return !folder_.empty();
  const Result<std::string> made = make_folder(options_.runs, document_.process().program);
  if (made.ok()) folder_ = *made;
  else no_folder_ = made.why();
  return made.ok();
}

void Engine::write_capsule(Watched& watched, json& alarm, SecondRun& run) {
  if (!has_folder()) return;
  char name[64];
  std::snprintf(name, sizeof name, "step-%06llu", alarm["step"].get<unsigned long long>());
  const std::string optimizer = watched.ordinal() == 0 ? "" : "-optimizer-" + std::to_string(watched.ordinal());
  const std::string path = free_name(folder_, name + optimizer);
  const std::string why = run.keep(path, about_capsule(alarm, document_, options_.redact), options_.capsule_max_bytes, options_.redact);
  if (!why.empty()) {
    document_.not_watched("a capsule of step " + std::to_string(alarm["step"].get<std::uint64_t>()) + ": " + why);
    return;
  }
  alarm["capsule"] = path;
  capture::keep_newest(folder_, options_.capsules, path);
  capture::remove_left_behind(options_.runs);
}

Status Engine::write_reports() {
  Status status;
  if (!has_folder()) status = Status(no_folder_);
  if (folder_.empty() && options_.report.empty()) return status;
  const json document = document_.whole(counters_);
  const std::string text = printed(document);
  if (!folder_.empty()) {
    status = write_file(folder_ + "/report.json", text);
    if (status.ok()) status = write_file(folder_ + "/report.html", show::html(document));
  }
  if (options_.report.empty()) return status;
  const Status further = write_file(options_.report, text);
  return status.ok() ? further : status;
}

void Engine::tell_unwritten(const Status& status) {
  if (status.ok() || told_unwritten_) return;
  told_unwritten_ = true;
  say("finitude: warning: " + status.why() + "\n");
}

std::string Engine::text() const { return show::terminal(document_.whole(counters_), {}); }

Status Engine::finish() {
  if (finished_) return {};
  finished_ = true;
  Status status;
  safely([&] {
    status = write_reports();
    tell_unwritten(status);
    std::error_code error;
    const std::string place = !folder_.empty() ? folder_ + "/report.json" : options_.report;
    const std::string relative = place.empty() ? "" : std::filesystem::relative(place, error).string();
    say(document_.closing_line(counters_, !error && !relative.empty() && relative.size() < place.size() ? relative : place));
  });
  on_ = false;
  return status;
}

}  // namespace finitude::recorder
