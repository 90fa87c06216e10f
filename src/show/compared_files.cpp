#include "show/compared_files.h"

#include <filesystem>
#include <optional>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/packed_capsule.h"
#include "capture/tape_file.h"
#include "compare/document.h"
#include "compare/record_pairs.h"
#include "compare/trace_run.h"
#include "show/capsule_ops.h"
#include "show/dump_files.h"
#include "show/json_file.h"
#include "show/run_about.h"

namespace finitude::show {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

enum Code { kSame = 0, kParted = 1, kUnreadable = 3, kCannotHere = 4 };

struct Failed {
  int code;
  std::string why;
};

struct Recording {
  std::string path;
  bool is_tape = false, is_capsule = false;
  capture::Tape tape;
  json about = json::object();
  std::optional<json> trace;  // what a report has under that key

  bool is_redacted() const { return is_capsule && about.value("redacted", json(false)) != false; }
  bool has_values() const { return is_tape && !is_redacted(); }
};

// The traced run of a capsule in place of its tape. Why that cannot be, or empty.
std::string take_statistics(Recording& r) {
  json about, ops;
  std::string why = r.is_capsule ? ops_of_capsule(r.path, about, ops) : "holds no statistics of its operations";
  if (why.empty()) r.trace = json(json::object({{"ops", std::move(ops)}}));
  return why;
}

Recording read(const std::string& named) {
  Recording r;
  const fs::path file(named), parent = file.parent_path();
  const std::string path = file.filename() != "capsule.json" ? named
                           : parent.empty()                  ? "."
                                                             : parent.string();  // the folder is meant
  r.path = path;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (capture::is_packed_capsule(path) || (folder && fs::exists(fs::path(path) / "capsule.json", error))) {
    r.is_tape = r.is_capsule = true;
    if (const Status status = capture::read_capsule(path, &r.about, &r.tape); !status.ok())
      throw Failed{kUnreadable, path + " " + status.why()};
    if (const std::vector<std::string> damage = capture::capsule_damage(path);
        !damage.empty())  // of the files that are not read for it
      throw Failed{kUnreadable, path + ": " + damage.front()};
    return r;
  }
  if (!folder) {
    std::string bytes;
    if (const Status status = base::read_file(path, &bytes); !status.ok())
      throw Failed{kUnreadable, path + " " + status.why()};
    if (bytes.starts_with(capture::kTapeMagic)) {
      r.is_tape = true;
      if (const Status status = capture::read_tape(bytes, &r.tape); !status.ok())
        throw Failed{kUnreadable, path + " " + status.why()};
      return r;
    }
  }
  if (const Status status = read_report_json(path, kMaxFile, r.about); !status.ok())
    throw Failed{kUnreadable, path + " " + status.why()};
  if (!r.about.contains("trace")) {
    throw Failed{kCannotHere, path +
                                  " holds no trace: record one with `finitude run --level trace --report FILE`, or "
                                  "name the folder of a capsule"};
  }
  r.trace = r.about["trace"];
  const json run = about_of_run(path);  // packages, environment, optimizers: a report has none of them
  for (const auto& [key, value] : run.items()) {
    if (!r.about.contains(key)) r.about[key] = value;
  }
  return r;
}

// Tapes are played where all that are to be compared can be, and there is something to play them with; else what was
// traced is compared. So it is where one of the two is a trace: that has operators as they were called, a tape those
// that computed.
void choose(Recording& a, Recording& b, const Players* players) {
  const auto plays = [&](const Recording& r) { return !r.is_tape || (players != nullptr && r.has_values()); };
  const bool all_play = plays(a) && plays(b) && a.is_tape == b.is_tape;
  for (Recording* r : {&a, &b}) {
    if (!r->is_tape || all_play) continue;
    const std::string why = take_statistics(*r);
    if (why.empty() || plays(*r)) continue;
    throw Failed{
        kCannotHere,
        r->path +
            (r->has_values()
                 ? " is a capsule whose values are computed again to be compared, which needs torch: `finitude diff` "
                   "does that. Without torch what was traced is compared, but it "
                 : " was made with --redact: it can be compared only by what was traced, but it ") +
            why};
  }
}

// Of a dump of operators.
compare::DumpedValues values_beside(const std::string& path) {
  const std::string file = values_file_of(path);
  auto values = compare::DumpedValues::open(file);
  if (!values.ok()) throw Failed{kUnreadable, file + " " + values.why()};
  return std::move(*values);
}

void compare_runs(const Recording& a, const Recording& b, const Players& players, compare::Compared* out) {
  const auto run = [&](const Recording& r, const char* letter) {
    if (r.trace) return compare::run_of_trace(json::object({{"trace", *r.trace}}));
    compare::Run made;
    if (const std::string why = players.one(r.tape, &made); !why.empty())
      throw Failed{kCannotHere, std::string(letter) + ": " + why};
    return made;
  };
  if (!a.trace && !b.trace) {
    if (const std::string why = players.both(a.tape, b.tape, out); !why.empty()) throw Failed{kCannotHere, why};
    return;
  }
  out->a = run(a, "A");
  out->b = run(b, "B");
  if (a.is_redacted() || b.is_redacted()) {  // arguments that one side does not say are no difference
    for (compare::Run* r : {&out->a, &out->b}) {
      for (compare::Call& call : r->calls) call.scalars.clear();
    }
  }
  out->rows = compare::rows_of(out->a, out->b, &out->pairs);
  const compare::DumpedValues in_a = values_beside(a.path), in_b = values_beside(b.path);
  compare::fill_in_values(out->a, in_a, out->b, in_b, out->rows, out->pairs);
  compare::fill_in(out->a, out->b, out->rows, out->pairs, out->results);
}

}  // namespace

ComparedFiles compare_files(const std::string& path_a, const std::string& path_b, const Players* players) {
  try {
    Recording a = read(path_a), b = read(path_b);
    choose(a, b, players);
    compare::Compared both;
    compare_runs(a, b, players != nullptr ? *players : Players(), &both);
    const compare::Judgement judgement = compare::judge(both.a, both.b, both.rows, both.pairs, both.results);
    const auto about = compare::about_differences(a.about, a.tape.settings, b.about, b.tape.settings);
    if (compare::nothing_compared(judgement, both.results)) {
      throw Failed{kCannotHere, "there is nothing to compare: no call of " + path_a + " (" +
                                    std::to_string(both.a.calls.size()) + " calls) corresponds to one of " + path_b +
                                    " (" + std::to_string(both.b.calls.size()) + ")"};
    }
    const compare::Unanswered unanswered = compare::unanswered(both.a, both.b, both.rows);
    return {judgement.first() != nullptr || unanswered.any() ? kParted : kSame, "",
            compare::document({both.a, both.b, both.rows, both.pairs, both.results, about, path_a, path_b,
                               both.reproduced_a, both.reproduced_b, both.values_left_out, a.trace || b.trace},
                              judgement, unanswered)};
  } catch (const Failed& failed) {
    return {failed.code, failed.why, {}};
  }
}

}  // namespace finitude::show
