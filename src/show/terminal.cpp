// The report as text: one block per alarm, then advisories, what was watched, and what to do next.
#include <algorithm>
#include <string_view>
#include <utility>

#include "show/layout.h"
#include "show/printable.h"
#include "show/words.h"

namespace finitude::show {
namespace {

constexpr int kHang = 10;
constexpr std::size_t kShownAlarms = 20, kShownAdvisories = 10, kShownTensors = 4, kShownBirths = 3,
                      kShownExperiments = 8;

class Terminal {
 public:
  Terminal(const Json& report, const TerminalOptions& options) : report_(report), page_(options) {
    if (flag(report, "by_watch")) page_.use_keywords();
  }

  std::string take() {
    const Json& alarms = list(report_, "alarms");
    if (alarms.empty()) outcome();
    std::size_t findings = 0;
    for (const Json& one : alarms) {
      if (is_repeat(report_, one) || ++findings > kShownAlarms) continue;
      if (findings > 1) page_.blank();
      alarm(one);
      if (const std::string line = repeats_sentence(report_, one); !line.empty())
        labelled("repeated", Tone::kStrong, {{line}});
    }
    if (findings > kShownAlarms) more(findings - kShownAlarms, "alarm");
    warnings();
    advisories();
    if (const std::string end = end_sentence(report_); !end.empty()) labelled("run", Tone::kWarn, {{end}});
    if (!alarms.empty() && knows_what_was_watched()) labelled("watched", Tone::kDim, {{watched_sentence(report_)}});
    not_watched();
    hint();
    return page_.take();
  }

 private:
  // The report of a capsule is of one alarm: it does not.
  bool knows_what_was_watched() const {
    const Json& watched = at(report_, "watched");
    return count(watched, "optimizers") + count(watched, "steps") + count(watched, "backward_calls") != 0;
  }
  void labelled(const char* label, Tone tone, const std::vector<Piece>& pieces) {
    page_.line(label, tone, pieces, kHang);
  }
  void more(std::size_t n, const char* noun) {
    labelled("", Tone::kPlain, {{"and " + counted(n, noun) + " more in the JSON report", Tone::kDim}});
  }

  void outcome() {
    const std::string outcome = text(report_, "outcome");
    std::string line = outcome_sentence(report_);
    if (outcome != "unwatched" && !watched_sentence(report_).empty()) {
      line.pop_back();
      line += ": " + watched_sentence(report_) + ".";
    }
    page_.line("finitude:", outcome == "clean" ? Tone::kGood : Tone::kWarn, {{line, Tone::kPlain}}, kHang);
  }

  void not_watched() {
    const Json& all = list(at(report_, "watched"), "not_watched");
    for (std::size_t i = 0; i < std::min(all.size(), kShownAdvisories); ++i) {
      if (all[i].is_string())
        labelled("unwatched", Tone::kDim, {{all[i].get_ref<const std::string&>().substr(0, 4096)}});
    }
    if (all.size() > kShownAdvisories) more(all.size() - kShownAdvisories, "such note");
  }

  // A path keeps its end, where file and line are.
  std::string shown_place(const Json& located) const {
    return cut_left(printable(place(report_, located), page_.unicode()),
                    std::max(16, std::min(page_.width(), 400) / 2));
  }
  void add(std::vector<Piece>& pieces, const std::string& what, Tone tone = Tone::kPlain) const {
    if (!what.empty()) pieces.push_back({what, tone});
  }
  std::string arrow() const { return page_.unicode() ? "\u2192 " : "-> "; }

  void alarm(const Json& alarm) {
    page_.line("finitude:", flag(alarm, "harmless") ? Tone::kWarn : Tone::kBad,
               {{headline(report_, alarm), Tone::kStrong}}, kHang);
    if (const std::string onset = text(at(alarm, "onset"), "text"); !onset.empty())
      labelled("onset", Tone::kStrong, {{printable(onset, page_.unicode())}});
    const Json& births = list(alarm, "births");
    for (std::size_t i = 0; i < std::min(births.size(), kShownBirths); ++i) {
      birth(births[i], i > 0);
      if (i == 0) path(alarm);
    }
    if (births.size() > kShownBirths) more(births.size() - kShownBirths, "birth");
    saved(alarm);
    if (const std::string line = gradients_sentence(alarm); !line.empty())
      labelled("gradients", Tone::kStrong, {{line}});
    if (const std::string line = buffers_sentence(alarm); !line.empty()) labelled("buffers", Tone::kStrong, {{line}});
    const std::string loss = drift(at(alarm, "history"), "loss"), grad = drift(at(alarm, "history"), "grad_absmax");
    if (!loss.empty()) labelled("before", Tone::kStrong, {{"loss " + loss}});
    if (!grad.empty()) labelled(loss.empty() ? "before" : "", Tone::kStrong, {{"largest gradient " + grad}});
    if (const std::string line = rerun_sentence(alarm); !line.empty()) labelled("again", Tone::kStrong, {{line}});
    cause(at(alarm, "cause"));
    fix(at(alarm, "fix"));
    if (const Json& good = at(alarm, "last_good"); good.is_object())
      labelled("last good", Tone::kStrong, {{text(good, "checkpoint"), Tone::kCode}, {"a checkpoint", Tone::kDim}});
    if (const std::string line = way_back_sentence(report_, alarm); !line.empty())
      labelled("way back", Tone::kStrong, {{line}});
    if (const std::string capsule = text(alarm, "capsule"); !capsule.empty()) {
      const CapsuleNote note = capsule_note(report_, alarm);
      labelled("capsule", Tone::kStrong,
               {{capsule, Tone::kCode},
                {note.before, Tone::kDim},
                {note.command, Tone::kDim, note.before.empty() ? 3 : 1, false, true},
                {note.after, Tone::kDim, 1}});
    }
  }

  void birth(const Json& birth, bool other) {
    const Json& forward = at(birth, "forward");
    const bool backward = forward.is_object();
    std::vector<Piece> pieces;
    add(pieces, born_at(birth), Tone::kBad);
    if (backward && !text(forward, "op").empty())
      add(pieces,
          "backward of " + text(forward, "op") + (text(forward, "text").empty() ? "" : ", " + text(forward, "text")),
          Tone::kBad);
    // The node's own place is the forward op's, unless a custom function has a line of its own.
    const Json& where = text(birth, "file").empty() && backward ? forward : birth;
    add(pieces, shown_place(where), Tone::kCode);
    // Of several operations of the line, which one it is.
    if (const std::string expression = text(birth, "expression"); !expression.empty()) {
      add(pieces, printable(expression, page_.unicode()), Tone::kBad);
      add(pieces, "of", Tone::kDim);
    }
    add(pieces, cut(printable(text(where, "source"), page_.unicode()), 200));
    if (const std::string module = text(where, "module"); !module.empty()) add(pieces, "in " + module, Tone::kDim);
    const std::string phase = text(birth, "phase");
    page_.line((other ? "also in " : "born in ") + (phase.empty() ? "an unknown phase" : phase), Tone::kStrong, pieces,
               kHang);
    if (const Json& own = at(birth, "user_frame"); own.is_object()) {
      pieces.clear();
      add(pieces, shown_place(own), Tone::kCode);
      add(pieces, cut(printable(text(own, "source"), page_.unicode()), 200));
      page_.line("  from", Tone::kDim, pieces, kHang);
    }
    // Inside a backward of its own (autograd.grad, a function's backward) it has one, which says nothing of the op.
    if (backward && &where == &birth && !text(forward, "file").empty() &&
        (text(forward, "file") != text(birth, "file") || count(forward, "line") != count(birth, "line"))) {
      pieces.clear();
      add(pieces, text(forward, "op"));
      add(pieces, shown_place(forward), Tone::kCode);
      add(pieces, cut(printable(text(forward, "source"), page_.unicode()), 200));
      if (const std::string module = text(forward, "module"); !module.empty()) add(pieces, "in " + module, Tone::kDim);
      page_.line("  forward", Tone::kDim, pieces, kHang);
    }
    const Json none;
    tensors("input", list(birth, "inputs"), none);
    pieces.clear();
    for (const std::string& scalar : scalars_words(birth)) add(pieces, scalar);
    if (!pieces.empty()) page_.line("  with", Tone::kDim, pieces, kHang);
    tensors("output", list(birth, "outputs"), at(birth, "rows"));
    if (const std::string samples = samples_words(birth); !samples.empty())
      page_.line("  data", Tone::kDim, {{samples}}, kHang);
    if (const Json& select = at(birth, "absorbed_by"); select.is_object()) {
      pieces.clear();
      add(pieces, text(select, "op"), Tone::kWarn);
      add(pieces, shown_place(select), Tone::kCode);
      add(pieces, cut(printable(text(select, "source"), page_.unicode()), 200));
      page_.line("  hidden by", Tone::kDim, pieces, kHang);
    }
  }

  // What the program gave to finitude.save in this step.
  void saved(const Json& alarm) {
    const Json& by_name = at(alarm, "saved");
    if (!by_name.is_object()) return;
    Json all = Json::array();
    for (const Json& statistics : by_name) {
      if (statistics.is_object()) all.push_back(statistics);
    }
    tensors("saved", all, Json());
    if (const std::string values = text(alarm, "saved_values"); !values.empty())
      labelled("", Tone::kStrong, {{values, Tone::kCode}, {"their values", Tone::kDim}});
  }

  void tensors(const char* label, const Json& all, const Json& rows) {
    for (std::size_t i = 0; i < std::min(all.size(), kShownTensors); ++i) {
      std::vector<Piece> pieces{{(text(all[i], "arg").empty() ? "" : text(all[i], "arg") + " ") + tensor_type(all[i])}};
      const bool bad = count(all[i], "nan") + count(all[i], "inf") > 0;
      for (const std::string& value : tensor_values(all[i], rows)) {
        add(pieces, value, bad && value.find(" x ") != std::string::npos ? Tone::kBad : Tone::kPlain);
      }
      page_.line(std::string("  ") + label, Tone::kDim, pieces, kHang);
    }
    if (all.size() > kShownTensors) more(all.size() - kShownTensors, label);
  }

  void path(const Json& alarm) {
    const Json& all = list(alarm, "path");
    if (all.empty()) return;
    constexpr std::size_t kFirst = 4, kLast = 3;
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all.size() > kFirst + kLast + 1 && i == kFirst) {
        pieces.push_back({arrow() + "(" + grouped(all.size() - kFirst - kLast) + " more)", Tone::kDim, 1});
        i = all.size() - kLast;
      }
      const std::string where = shown_place(all[i]), said = text(all[i], "text");
      std::string step = arrow() + text(all[i], "op");
      if (!where.empty()) step += " (" + where + ")";
      if (!said.empty()) step += " " + said;
      pieces.push_back({step, Tone::kPlain, 1});
    }
    const Json& sink = path_end(alarm);
    const std::string name = text(sink, "name");
    if (text(sink, "kind") == "gradient")
      pieces.push_back({arrow() + "gradient of " + name, Tone::kPlain, 1});
    else if (!(name + text(sink, "kind")).empty())
      pieces.push_back({arrow() + (name.empty() ? text(sink, "kind") : name), Tone::kPlain, 1});
    page_.line("  path", Tone::kDim, pieces, kHang);
  }

  void cause(const Json& cause) {
    const std::string line = cause_sentence(cause), tag = cause_tag(cause);
    if (line.empty()) return;
    const std::string confidence = text(cause, "confidence");
    std::vector<Piece> pieces{{line}};
    if (!tag.empty()) {
      pieces.push_back({"[" + tag + "]", confidence == "proven" ? Tone::kGood : Tone::kWarn, 3, true});
    }
    labelled("cause", Tone::kStrong, pieces);
    const Json& experiments = list(cause, "experiments");
    std::vector<Piece> together;  // short ones share a line
    const auto flush = [&] {
      if (!together.empty()) labelled("", Tone::kPlain, std::exchange(together, {}));
    };
    std::size_t shown = 0, alike = 0;
    for (std::size_t i = 0; i < experiments.size() && shown < kShownExperiments; ++i, ++shown) {
      constexpr std::size_t kShort = 40;
      const std::string outcome = text(experiments[i], "outcome");
      std::string names = experiment_words(experiments[i]);
      // What comes out alike is said once.
      for (; outcome.size() > kShort && i + 1 < experiments.size() && text(experiments[i + 1], "outcome") == outcome;
           ++i) {
        constexpr std::string_view kWhole = "whole step, ";
        const std::string next = experiment_words(experiments[i + 1]);
        names += "; " + (names.starts_with(kWhole) && next.starts_with(kWhole) ? next.substr(kWhole.size()) : next);
        ++alike;
      }
      const Piece reported{names + ": " + outcome, Tone::kPlain, 4};
      if (reported.text.size() > kShort) flush();
      together.push_back(reported);
      if (reported.text.size() > kShort) flush();
    }
    flush();
    if (experiments.size() > shown + alike) more(experiments.size() - shown - alike, "experiment");
    if (const std::string time = time_sentence(cause); !time.empty()) labelled("", Tone::kDim, {{time}});
  }

  void fix(const Json& fix) {
    const std::string line = fix_sentence(report_, fix);
    if (line.empty()) return;
    labelled("fix", Tone::kStrong,
             {{line}, {"[" + fix_tag(fix) + "]", flag(fix, "verified") ? Tone::kGood : Tone::kWarn, 3, true}});
    for (const std::string& line : patch_lines(text(fix, "diff"))) page_.verbatim(line);
  }

  // The first and the last of each course: between them lie the same words with larger numbers.
  void warnings() {
    const Json& all = list(report_, "warnings");
    std::size_t hidden = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto same = [&](std::size_t other) {
        return text(all[i], "what") == text(all[other], "what") &&
               text(all[i], "optimizer") == text(all[other], "optimizer");
      };
      const bool is_between = i > 0 && i + 1 < all.size() && same(i - 1) && same(i + 1);
      if (is_between || i - hidden >= kShownAdvisories) {
        ++hidden;
        continue;
      }
      labelled("warning", Tone::kWarn,
               {{"step " + std::to_string(count(all[i], "step")) + ": " + text(all[i], "text")}});
    }
    if (hidden != 0) more(hidden, "warning");
  }

  void advisories() {
    const Json& all = list(report_, "advisories");
    for (std::size_t i = 0; i < std::min(all.size(), kShownAdvisories); ++i) {
      const Json& one = all[i];
      std::string line = text(one, "kind");
      if (has_count(one, "step")) line += (line.empty() ? "step " : ", step ") + std::to_string(count(one, "step"));
      labelled("advisory", Tone::kWarn, {{line + ": " + text(one, "text")}});
      const Json& births = list(one, "births");
      if (!births.empty()) birth(births[0], false);
      cause(at(one, "cause"));
    }
    if (all.size() > kShownAdvisories) more(all.size() - kShownAdvisories, "advisory note");
  }

  // Ways to run the step again were tried, and none led there; a level that needs none was not asked for.
  static bool no_way_back(const Json& alarm) {
    return text(alarm, "level") == "gate" && text(alarm, "rerun") == "not-run" && !text(alarm, "rerun_text").empty() &&
           text(alarm, "policy") != "raise" && list(alarm, "births").empty() &&
           text(at(alarm, "cause"), "class") == "unknown";
  }

  // Not by an exception of the script, and not because the script itself drops its steps: no policy changes these.
  static bool is_stopped_by_policy(const Json& alarm) {
    const std::string action = text(alarm, "action");
    const bool ours = action.empty() || action.rfind("stopped", 0) == 0 || action.rfind("the step was undone", 0) == 0;
    return ours && text(alarm, "text").find("the script dropped") == std::string::npos;
  }

  // One thing to do next, and only what this report can keep.
  void hint() {
    const std::string outcome = text(report_, "outcome");
    const Json& alarms = list(report_, "alarms");
    const bool of_cpp = is_of_cpp(report_);
    // Whether a program asks the environment for its options is not in a report.
    const auto on_alarm = [&](const std::string& word, const char* name) {
      return of_cpp ? std::string("RecorderOptions::on_alarm = OnAlarm::") + name +
                          " (where options_from_environment() is asked: FINITUDE_ON_ALARM=" + word + ")"
                    : "--on-alarm " + word;
    };
    std::string hint;
    if (outcome == "unwatched") {
      hint = of_cpp
                 ? "Recorder::step runs and judges a step, Recorder::gate judges one; is this the program that trains?"
                 : "`finitude run` watches every optimizer of the script it starts; is this the script that trains?";
    } else if (!alarms.empty()) {
      const std::string policy = text(alarms.back(), "policy");
      if (policy == "raise") hint = on_alarm("stop", "kStop") + " runs such a step again and names the cause";
      if (std::ranges::any_of(alarms, no_way_back))
        hint = "--level tape records the operators of every step, and explains such a one without running it again";
      else if (policy == "stop" && !flag(alarms.back(), "harmless") && is_stopped_by_policy(alarms.back()) &&
               text(alarms.back(), "weights") != "damaged" && way_back_sentence(report_, alarms.back()).empty())
        hint = on_alarm("skip", "kSkip") + " continues without such a step, " + (of_cpp ? "kWarn" : "warn") +
               " applies it";
    }
    if (!hint.empty()) labelled("next", Tone::kDim, {{hint, Tone::kDim}});
  }

  const Json& report_;
  Layout page_;
};

}  // namespace

std::string terminal(const Json& report, const TerminalOptions& options) {
  if (!report.is_object()) return "finitude: not a report\n";
  return Terminal(report, options).take();
}

}  // namespace finitude::show
