#include "show/run_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "compare/about.h"
#include "compare/run_series.h"
#include "show/about_lines.h"
#include "show/json_file.h"
#include "show/layout.h"
#include "show/run_about.h"
#include "show/words.h"

namespace finitude::show {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostListed = 200, kShownSeries = 10;
constexpr int kHangOfCourses = 12;

Json value_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json series_of(const compare::SeriesDifference& one) {
  return {{"quantity", one.quantity},
          {"optimizer", one.optimizer},
          {"parameter", one.parameter.empty() ? Json() : Json(one.parameter)},
          {"level", compare::word(one.level)},
          {"steps", one.steps},
          {"last_same_step", one.has_same ? Json(one.last_same) : Json()},
          {"first_step", one.first_step},
          {"a", value_or_null(one.a)},
          {"b", value_or_null(one.b)},
          {"relative", one.relative},
          {"largest", one.largest},
          {"largest_step", one.largest_step}};
}

std::string course_of(const Json& one) {
  const std::string parameter = text(one, "parameter");
  return text(one, "quantity") + (parameter.empty() ? "" : " of " + parameter);
}

}  // namespace

std::string store_of_run(const std::string& path) {
  std::error_code error;
  if (fs::path(path).filename() == "store.sqlite") return path;
  for (const fs::path& folder : {fs::path(path), fs::path(path) / "rank-0"}) {
    if (fs::is_regular_file(folder / "store.sqlite", error)) return (folder / "store.sqlite").string();
  }
  return {};
}

bool has_trace(const std::string& path) {
  std::string bytes;
  return read_file(path + "/report.json", kMaxFile, bytes).empty() && bytes.find("\"trace\"") != std::string::npos;
}

ComparedRuns compare_courses(const std::string& path_a, const std::string& path_b) {
  compare::Course a, b;
  for (const auto& [path, course] : {std::pair(&path_a, &a), std::pair(&path_b, &b)}) {
    const std::string store = store_of_run(*path);
    if (const Status status = store::read_points(store, &course->series, &course->batches); !status.ok())
      return {3, store + " " + status.why(), {}};
  }
  const compare::CourseJudgement judgement = compare::judge_courses(a, b);
  if (judgement.compared == 0)
    return {4, "there is nothing to compare: no series of " + path_a + " is one of " + path_b, {}};
  ComparedRuns out;
  Json& document = out.document;
  document = {{"kind", "finitude diff of runs"}, {"schema", 1}, {"a", path_a}, {"b", path_b}};
  document["verdict"] = judgement.diverges ? "divergence" : judgement.differing.empty() ? "same" : "noise";
  document["step"] = judgement.diverges ? Json(judgement.step) : Json();
  document["series"] = Json::array();
  for (const compare::SeriesDifference& one : judgement.differing) {
    if (document["series"].size() < kMostListed) document["series"].push_back(series_of(one));
  }
  document["counts"] = {{"series", judgement.compared},
                        {"differing", judgement.differing.size()},
                        {"only_a", judgement.only_a},
                        {"only_b", judgement.only_b},
                        {"micro_batches", judgement.batches}};
  document["other_data"] = judgement.has_other_data
                               ? Json({{"step", judgement.data_step}, {"micro_batch", judgement.data_micro_batch}})
                               : Json();
  document["about"] = Json::array();
  for (const auto& d : compare::about_differences(about_of_run(path_a), {}, about_of_run(path_b), {})) {
    if (document["about"].size() < kMostListed)
      document["about"].push_back({{"group", d.group}, {"key", d.key}, {"a", d.a}, {"b", d.b}});
  }
  out.code = judgement.diverges ? 1 : 0;
  return out;
}

std::string course_comparison(const nlohmann::json& document, const TerminalOptions& options) {
  Layout page(options);
  about_lines(list(document, "about"), kHangOfCourses, &page);
  const std::string verdict = text(document, "verdict");
  const Json& series = list(document, "series");
  if (verdict == "same") {
    page.line("finitude:", Tone::kGood, {{"no difference: every series has the same values"}}, 0);
  } else if (verdict == "noise") {
    page.line("finitude:", Tone::kGood, {{"no divergence: the first differences are rounding noise, which may grow"}},
              0);
  } else {
    const std::string step = digits(at(document, "step"));
    std::string what;
    if (const Json& data = at(document, "other_data"); data.is_object() && digits(at(data, "step")) == step)
      what = "rows of micro-batch " + digits(at(data, "micro_batch"));
    for (const Json& one : series) {
      if (text(one, "level") == "differs" && digits(at(one, "first_step")) == step && text(one, "parameter").empty())
        what += (what.empty() ? "" : ", ") + text(one, "quantity");
    }
    page.line("finitude:", Tone::kBad,
              {{"they diverge at step " + step + (what.empty() ? "" : ": " + what), Tone::kStrong}}, 0);
  }
  for (std::size_t i = 0; i < std::min(series.size(), kShownSeries); ++i) {
    const Json& one = series[i];
    const std::string before =
        at(one, "last_same_step").is_null() ? "" : ", the same up to step " + digits(at(one, "last_same_step"));
    page.line(i == 0 ? "series" : "", Tone::kStrong,
              {{course_of(one)},
               {"step " + digits(at(one, "first_step")) + ": " + number_text(real(at(one, "a"))) + " against " +
                number_text(real(at(one, "b"))) + (text(one, "level") == "noise" ? " (rounding)" : "") + before +
                "; at most " + number_text(real(at(one, "largest"))) + " relative, at step " +
                digits(at(one, "largest_step"))}},
              kHangOfCourses);
  }
  if (series.size() > kShownSeries)
    page.line("", Tone::kStrong, {{"and " + grouped(series.size() - kShownSeries) + " more (--json has them)"}},
              kHangOfCourses);
  const Json& c = at(document, "counts");
  page.line("compared", Tone::kDim,
            {{grouped(count(c, "series")) + " series, " + grouped(count(c, "differing")) + " differ; " +
                  grouped(count(c, "micro_batches")) + " micro-batches by their rows; " + grouped(count(c, "only_a")) +
                  " series only in A, " + grouped(count(c, "only_b")) + " only in B",
              Tone::kDim}},
            kHangOfCourses);
  return page.take();
}

}  // namespace finitude::show
