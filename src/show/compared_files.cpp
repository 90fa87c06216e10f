#include "show/compared_files.h"

#include <filesystem>

#include "base/file.h"
#include "capture/capsule.h"
#include "capture/tape_file.h"
#include "compare/document.h"
#include "compare/trace_run.h"
#include "show/json_file.h"

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
  bool is_tape = false;
  capture::Tape tape;
  json about = json::object();
};

Recording read(const std::string& path) {
  Recording r;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (folder && fs::exists(fs::path(path) / "capsule.json", error)) {
    r.is_tape = true;
    if (const Status status = capture::read_capsule(path, &r.about, &r.tape); !status.ok())
      throw Failed{kUnreadable, path + " " + status.why()};
    if (r.about.contains("redacted") && r.about["redacted"] != false)
      throw Failed{kCannotHere, path + " was made with --redact: its values were left out, so it cannot be compared"};
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
    if (bytes.starts_with("PK\x03\x04"))  // the Python commands unpack it before they come here
      throw Failed{kCannotHere, path + " is a packed capsule: `finitude unpack` makes its folder again"};
  }
  if (const std::string why = read_report_json(path, kMaxFile, r.about); !why.empty())
    throw Failed{kUnreadable, path + " " + why};
  if (!r.about.contains("trace")) {
    throw Failed{kCannotHere, path + " holds no trace: record one with `finitude run --level trace --report FILE`, or "
                                     "name the folder of a capsule"};
  }
  return r;
}

void compare_runs(const Recording& a, const Recording& b, const Players& players, compare::Compared* out) {
  const auto run = [&](const Recording& r, const char* letter) {
    if (!r.is_tape) return compare::run_of_trace(r.about);
    compare::Run made;
    if (const std::string why = players.one(r.tape, &made); !why.empty())
      throw Failed{kCannotHere, std::string(letter) + ": " + why};
    return made;
  };
  if (a.is_tape && b.is_tape) {
    if (const std::string why = players.both(a.tape, b.tape, out); !why.empty()) throw Failed{kCannotHere, why};
    return;
  }
  out->a = run(a, "A");
  out->b = run(b, "B");
  out->rows = compare::rows_of(out->a, out->b, &out->pairs);
  compare::fill_in(out->a, out->b, out->rows, out->pairs, out->results);
}

}  // namespace

ComparedFiles compare_files(const std::string& path_a, const std::string& path_b, const Players* players) {
  try {
    const Recording a = read(path_a), b = read(path_b);
    if (players == nullptr && (a.is_tape || b.is_tape)) {
      throw Failed{kCannotHere, (a.is_tape ? path_a : path_b) +
                                    " is a capsule: its values are computed again to be compared, which needs torch. "
                                    "`finitude diff` does that; without torch reports made with --level trace can be compared"};
    }
    compare::Compared both;
    compare_runs(a, b, players != nullptr ? *players : Players(), &both);
    const compare::Judgement judgement = compare::judge(both.a, both.b, both.rows, both.pairs, both.results);
    const auto about = compare::about_differences(a.about, a.tape.settings, b.about, b.tape.settings);
    return {judgement.first() != nullptr ? kParted : kSame, "",
            compare::document({both.a, both.b, both.rows, both.pairs, both.results, about, path_a, path_b,
                               both.reproduced_a, both.reproduced_b, both.values_left_out},
                              judgement)};
  } catch (const Failed& failed) {
    return {failed.code, failed.why, {}};
  }
}

}  // namespace finitude::show
