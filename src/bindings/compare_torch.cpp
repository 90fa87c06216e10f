#include <pybind11/stl.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "bindings/compare_python.h"
#include "capture/capsule.h"
#include "capture/tape_file.h"
#include "compare/capsules.h"
#include "compare/document.h"
#include "compare/trace_run.h"
#include "show/comparison.h"
#include "show/json_file.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;
namespace fs = std::filesystem;
using nlohmann::json;

enum Exit { kSame = 0, kDiverges = 1, kUnreadable = 3, kCannotHere = 4 };

struct Failed {
  int code;
  std::string why;
};

// A capsule, a tape, or a report with a trace.
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
    if (const Status status = capture::read_capsule(path, &r.about, &r.tape); !status.ok()) throw Failed{kUnreadable, path + " " + status.why()};
    if (r.about.contains("redacted") && r.about["redacted"] != false)
      throw Failed{kCannotHere, path + " was made with --redact: its values were left out, so it cannot be compared"};
    return r;
  }
  if (!folder) {
    std::string bytes;
    if (const Status status = base::read_file(path, &bytes); !status.ok()) throw Failed{kUnreadable, path + " " + status.why()};
    if (bytes.starts_with(capture::kTapeMagic)) {
      r.is_tape = true;
      if (const Status status = capture::read_tape(bytes, &r.tape); !status.ok()) throw Failed{kUnreadable, path + " " + status.why()};
      return r;
    }
  }
  if (const std::string why = show::read_report_json(path, show::kMaxFile, r.about); !why.empty())
    throw Failed{kUnreadable, path + " " + why};
  if (!r.about.contains("trace"))
    throw Failed{kCannotHere, path + " holds no trace: record one with `finitude run --level trace --report FILE`, or name the folder of a capsule"};
  return r;
}

void compare_runs(const Recording& a, const Recording& b, const compare::PlayedOptions& options, compare::Compared* out) {
  const auto run = [&](const Recording& r, const char* letter) {
    if (!r.is_tape) return compare::run_of_trace(r.about);
    compare::Run made;
    if (const std::string why = compare::play_one(r.tape, options, &made); !why.empty()) throw Failed{kCannotHere, std::string(letter) + ": " + why};
    return made;
  };
  if (a.is_tape && b.is_tape) {
    if (const std::string why = compare::play_both(a.tape, b.tape, options, out); !why.empty()) throw Failed{kCannotHere, why};
    return;
  }
  out->a = run(a, "A");
  out->b = run(b, "B");
  out->rows = compare::align(compare::keys_of(out->a), compare::keys_of(out->b));
  compare::fill_in(out->a, out->b, out->rows, out->pairs, out->results);
}

// (exit code, what is wrong, the document as JSON)
py::tuple compared(const std::string& path_a, const std::string& path_b, const std::vector<std::string>& namespaces,
                   int threads, std::uint64_t max_bytes) {
  try {
    std::string text;
    int code = kSame;
    {
      const py::gil_scoped_release release;
      const Recording a = read(path_a), b = read(path_b);
      compare::Compared both;
      compare_runs(a, b, {namespaces, threads, max_bytes}, &both);
      const compare::Judgement judgement = compare::judge(both.a, both.b, both.rows, both.pairs, both.results);
      const auto about = compare::about_differences(a.about, a.tape.settings, b.about, b.tape.settings);
      const json document = compare::document(
          {both.a, both.b, both.rows, both.pairs, both.results, about, path_a, path_b, both.reproduced_a,
           both.reproduced_b, both.values_left_out}, judgement);
      text = document.dump(-1, ' ', true, json::error_handler_t::replace);
      code = judgement.first() != nullptr ? kDiverges : kSame;
    }
    return py::make_tuple(code, "", text);
  } catch (const Failed& failed) {
    return py::make_tuple(failed.code, failed.why, "");
  }
}

}  // namespace

void define_compare(py::module_& m) {
  m.def("compare", &compared);
  m.def("render_comparison", [](const std::string& document, bool colour, int width, bool unicode) {
    return show::comparison(json::parse(document), {colour, width, unicode});
  });
}

}  // namespace finitude::bindings
