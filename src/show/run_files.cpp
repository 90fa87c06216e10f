#include "show/run_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "compare/about.h"
#include "compare/run_series.h"
#include "record/ring_posix.h"
#include "show/about_lines.h"
#include "show/json_file.h"
#include "show/layout.h"
#include "show/run_about.h"
#include "show/words.h"

namespace finitude::show {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostListed = 200, kShownSeries = 10, kShownFates = 10;
constexpr std::size_t kMostEventBytes = std::size_t{64} << 20, kMostAlarms = 10'000;
constexpr std::uint64_t kMostStep = std::uint64_t{1} << 53;
constexpr int kHangOfCourses = 12;

Json value_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

std::string course_of(const Json& one) {
  const std::string parameter = text(one, "parameter");
  return text(one, "quantity") + (parameter.empty() ? "" : " of " + parameter);
}

Json series_of(const compare::SeriesDifference& one) {
  return {
      {"quantity", one.quantity},
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
      {"largest_step", one.largest_step},
      {"unknown_before", one.unknown},
      {"apart", one.is_apart
                    ? Json({{"step", one.apart_since}, {"a", {one.min_a, one.max_a}}, {"b", {one.min_b, one.max_b}}})
                    : Json()}};
}

// By step and optimizer. An alarm is noted when its step is stopped, and once more when it is explained; one that is
// not, though the run continued, was none (finitude.allow).
void read_events(const fs::path& folder, std::map<std::pair<std::uint64_t, std::string>, std::string>* alarms,
                 std::string* outcome) {
  std::string bytes;
  if (!read_file((folder / "events.jsonl").string(), kMostEventBytes, bytes).empty()) return;
  Json begun;
  const auto add = [alarms](const Json& event) {
    const std::uint64_t step = count(event, "step");
    if (has_count(event, "step") && step < kMostStep && alarms->size() < kMostAlarms)
      alarms->try_emplace({step, text(event, "optimizer")}, text(event, "text"));
  };
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) {
    Json event;
    const bool may_count = line.find("\"alarm\"") != std::string::npos || line.find("\"end\"") != std::string::npos;
    if (!may_count || !parse_json(line, event).empty()) continue;
    const std::string kind = text(event, "kind");
    if (kind == "end") *outcome = text(event, "outcome");
    if (kind == "end" || kind == "alarm") begun = Json();
    if (kind != "alarm") continue;
    if (flag(event, "explained"))
      add(event);
    else
      begun = std::move(event);
  }
  add(begun);
}

// What its files say of the steps and of its end beyond the store. A file that is missing or damaged adds nothing.
void read_fates(const fs::path& folder, compare::Course* course, std::string* outcome) {
  record::RingContents ring;
  std::string why;
  if (record::read_ring_file((folder / "steps.ring").string(), &ring, &why)) course->recent = std::move(ring.records);
  std::map<std::pair<std::uint64_t, std::string>, std::string> alarms;
  read_events(folder, &alarms, outcome);
  for (const auto& [place, what] : alarms) course->alarms.push_back({place.second, what, place.first});
  Json report;
  if (outcome->empty() && read_report_json((folder / "report.json").string(), kMaxFile, report).ok() &&
      !at(report, "under_way").is_object())
    *outcome = text(report, "outcome");
}

std::string fate_text(const Json& one, const char* side) {
  const std::string what = text(one, side);
  return what.empty() ? "applied" : what;
}

// "A ends after step 349 (clean), B after step 399 (alarm)".
std::string end_text(const Json& one, const Json& outcomes) {
  const auto side = [&](const char* key) {
    const std::string outcome = text(outcomes, key);
    return "after step " + digits(at(one, key)) + " (" + (outcome.empty() ? "its end is not known" : outcome) + ")";
  };
  return "A ends " + side("a") + ", B " + side("b");
}

// What happens at the step of the divergence: data, values, fates, an end.
std::string what_diverges(const Json& document, bool with_values) {
  const std::string step = digits(at(document, "step"));
  std::string what;
  const auto add = [&what](const std::string& one) {
    if (what.size() < 300) what += (what.empty() ? "" : ", ") + one;
  };
  if (const Json& data = at(document, "other_data");
      with_values && data.is_object() && digits(at(data, "step")) == step)
    add("rows of micro-batch " + digits(at(data, "micro_batch")));
  for (const bool of_parameters : {false, true}) {
    for (const Json& one : list(document, "series")) {
      const bool is_set = text(one, "quantity").starts_with("learning_rate") || text(one, "quantity") == "loss_scale";
      const bool is_here = text(one, "level") == "differs" && digits(at(one, "first_step")) == step;
      if ((with_values || is_set) && is_here && text(one, "parameter").empty() != of_parameters &&
          (!of_parameters || what.empty()))
        add(course_of(one));
      if (const Json& apart = at(one, "apart"); !of_parameters && digits(at(apart, "step")) == step)
        add(course_of(one) + " is apart by more than a factor of 2 from there on");
    }
  }
  for (const Json& one : list(document, "fates")) {
    if (digits(at(one, "step")) != step) continue;
    for (const auto& [side, name] : {std::pair("a", "A"), std::pair("b", "B")}) {
      if (!text(one, side).empty()) add(std::string("in ") + name + " " + text(one, side));
    }
  }
  for (const Json& one : list(at(document, "ends"), "optimizers")) {
    if (digits(Json(std::min(count(one, "a"), count(one, "b")) + 1)) == step) add(end_text(one, at(document, "ends")));
  }
  return what;
}

// Of the first difference, where the step before it is not known: "step 399, or at one of the 142 before it".
std::string step_text(const Json& document) {
  const std::string step = digits(at(document, "step"));
  std::uint64_t unknown = 0;
  bool is_series = false;
  for (const Json& one : list(document, "series")) {
    if (text(one, "level") != "differs" || digits(at(one, "first_step")) != step) continue;
    unknown = is_series ? std::min(unknown, count(one, "unknown_before")) : count(one, "unknown_before");
    is_series = true;
  }
  return "step " + step + (unknown > 0 ? ", or at one of the " + grouped(unknown) + " before it" : "");
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
  std::string outcome_a, outcome_b;
  for (const auto& [path, course, outcome] :
       {std::tuple(&path_a, &a, &outcome_a), std::tuple(&path_b, &b, &outcome_b)}) {
    const std::string store = store_of_run(*path);
    if (const Status status = store::read_points(store, &course->series, &course->batches); !status.ok())
      return {3, store + " " + status.why(), {}};
    read_fates(fs::path(store).parent_path(), course, outcome);
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
    if (one.parameter.empty() || document["series"].size() < kMostListed) document["series"].push_back(series_of(one));
  }
  document["counts"] = {{"series", judgement.compared},
                        {"differing", judgement.differing.size()},
                        {"only_a", judgement.only_a},
                        {"only_b", judgement.only_b},
                        {"micro_batches", judgement.batches}};
  document["other_data"] = judgement.has_other_data
                               ? Json({{"step", judgement.data_step}, {"micro_batch", judgement.data_micro_batch}})
                               : Json();
  document["from_start"] = judgement.differs_from_start;
  document["fates"] = Json::array();
  for (const compare::OtherFate& one : judgement.fates) {
    if (document["fates"].size() < kMostListed)
      document["fates"].push_back({{"step", one.step}, {"optimizer", one.optimizer}, {"a", one.a}, {"b", one.b}});
  }
  document["ends"] = {{"a", outcome_a}, {"b", outcome_b}, {"optimizers", Json::array()}};
  for (const compare::OtherEnd& one : judgement.ends)
    document["ends"]["optimizers"].push_back({{"optimizer", one.optimizer}, {"a", one.a}, {"b", one.b}});
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
    const bool from_start = flag(document, "from_start");
    const std::string what = what_diverges(document, !from_start);
    if (from_start) {
      const Json& about = list(document, "about");
      const bool has_other_seeds =
          std::any_of(about.begin(), about.end(), [](const Json& one) { return text(one, "group") == "seeds"; });
      std::string names;
      for (const Json& one : series) {
        if (text(one, "level") == "differs" && text(one, "parameter").empty() && at(one, "last_same_step").is_null())
          names += (names.empty() ? "" : ", ") + course_of(one);
      }
      page.line(
          "finitude:", Tone::kBad,
          {{"they differ from the first step on" + std::string(has_other_seeds ? ", with other seeds: " : ": ") + names,
            Tone::kStrong}},
          0);
      page.line(
          "beyond that", Tone::kBad,
          {{what.empty() ? "nothing: steps end alike, no loss above zero is apart by more than a factor of 2 for long"
                         : "step " + digits(at(document, "step")) + ": " + what}},
          kHangOfCourses);
    } else {
      page.line("finitude:", Tone::kBad,
                {{"they diverge at " + step_text(document) + (what.empty() ? "" : ": " + what), Tone::kStrong}}, 0);
    }
  }
  const Json& fates = list(document, "fates");
  for (std::size_t i = 0; i < std::min(fates.size(), kShownFates); ++i) {
    const Json& one = fates[i];
    page.line(i == 0 ? "steps" : "", Tone::kStrong,
              {{"step " + digits(at(one, "step")) + " (" + text(one, "optimizer") + ")   A: " + fate_text(one, "a") +
                "   B: " + fate_text(one, "b")}},
              kHangOfCourses);
  }
  if (fates.size() > kShownFates)
    page.line("", Tone::kStrong, {{"and " + grouped(fates.size() - kShownFates) + " more (--json has them)"}},
              kHangOfCourses);
  const Json& ends = at(document, "ends");
  for (const Json& one : list(ends, "optimizers"))
    page.line("ends", Tone::kStrong, {{text(one, "optimizer")}, {end_text(one, ends)}}, kHangOfCourses);
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
