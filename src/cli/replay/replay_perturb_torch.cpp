#include "cli/replay/replay_perturb_torch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/replay/replay_exit.h"
#include "cli/replay/replay_moved_torch.h"
#include "replay/play_deadline.h"
#include "replay/tape_perturb_torch.h"
#include "replay/tape_player.h"
#include "replay/tape_verdict.h"

namespace finitude::cli {
namespace {

using replay::Perturb;
using replay::PerturbedCalls;
using replay::Played;
using replay::Say;

constexpr std::size_t kMostRows = 20;

std::string way_text(const std::string& how) {
  if (how == "noise") return "noise: inputs off by at most 2 ulps";
  if (how == "layout") return "layout: inputs with other strides";
  if (how == "unfused") return "unfused: by plain operations";
  if (how == "deterministic") return "deterministic kernels";
  return "computed in " + how + ", results rounded back";
}

std::string names_in_row(const std::vector<std::string>& names, std::size_t most = 4) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < most; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

std::string how_many(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string filled_up(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

class Perturbing {
 public:
  Perturbing(const ReplayOptions& options, const capture::Tape& tape, const Say& out, const Say& err)
      : options_(options), tape_(tape), out_(out), err_(err), how_(*replay::perturb_named(options.perturb)) {}

  int run() {
    std::string why;
    std::vector<std::size_t> calls;
    if (!options_.at.empty() && (calls = replay::find_calls(tape_, options_.at, &why)).empty()) {
      err_(why + "\n");
      return kUsage;
    }
    const auto now = replay::PlayDeadline::Clock::now();
    constexpr int kSeconds = 600;
    const replay::PlayDeadline deadline(now + std::chrono::seconds(options_.timeout > 0 ? options_.timeout : kSeconds));
    replay::KeepOutcomes usual(tape_), again(tape_);
    for (replay::KeepOutcomes* kept : {&usual, &again}) {
      const Played played = replay::play(tape_, options_.play, kept);
      if (!played.missing.empty() || !played.why_not.empty()) return failed(played);
    }
    if (usual.outcomes.empty()) {
      err_("there is nothing on the tape to compare\n");
      return kCannotHere;
    }
    usual_ = std::move(usual.outcomes);
    if (const Moved moved = moved_results(tape_, usual_, again.outcomes); moved.differing > 0)
      out_("two plays of the unchanged step differ themselves: " + lines_of(moved, "  "));
    return options_.at.empty() ? each_operator() : one(calls);
  }

 private:
  struct Trial {
    std::string op;
    Moved moved;
    std::size_t calls = 0, place = 0;  // that were computed in the other way; an entry of these
    std::string why_not;
  };

  int failed(const Played& played) {
    const replay::Reported reported = replay::report_runs({played}, tape_);
    (reported.code == kCannotHere ? err_ : out_)(reported.text);
    return reported.code;
  }

  Trial tried(const std::string& name, const std::vector<std::size_t>& calls, std::string* as_usual = nullptr) {
    PerturbedCalls perturbed(tape_, how_, calls);
    const Played played = replay::play(tape_, options_.play, &perturbed);
    Trial trial{name, {}, 0, calls.front(), played.why_not};
    for (const auto& [op, count] : perturbed.done()) trial.calls += count;
    for (const auto& [op, why] : perturbed.as_usual()) {
      if (as_usual != nullptr) *as_usual += "as usual: " + op + " (" + why + ")\n";
    }
    if (!trial.why_not.empty()) return trial;
    if (trial.calls == 0)
      trial.why_not = perturbed.as_usual().empty() ? "has no other form" : perturbed.as_usual().begin()->second;
    trial.moved = moved_results(tape_, usual_, perturbed.outcomes);
    return trial;
  }

  static int code_of(const Moved& moved) {
    return moved.now_finite.empty() && moved.now_not.empty() ? kDone : kNotReproduced;
  }

  // What moved, a line for each of it.
  std::string lines_of(const Moved& moved, const std::string& before) const {
    if (moved.differing == 0)
      return before + "no result moves: all " + how_many(moved.results, "result") + " have the same bits\n";
    std::string text;
    if (!moved.now_finite.empty()) text += before + "now finite: " + names_in_row(moved.now_finite) + "\n";
    if (!moved.now_not.empty()) text += before + "no longer finite: " + names_in_row(moved.now_not) + "\n";
    for (const auto* result : {&moved.loss, &moved.gradient, &moved.other}) {
      if (*result) text += before + (*result)->name + ": " + moved_text(**result) + "\n";
    }
    return text + before + std::to_string(moved.differing) + " of " + how_many(moved.results, "result") + " moved\n";
  }

  int one(const std::vector<std::size_t>& calls) {
    std::string as_usual;
    const Trial trial = tried(options_.at, calls, &as_usual);
    out_(as_usual);
    if (!trial.why_not.empty()) {
      err_("nothing of " + options_.at + " was computed otherwise: " + trial.why_not + "\n");
      return kCannotHere;
    }
    const std::string place = replay::place_of(tape_, trial.place);
    out_(way_text(options_.perturb) + ", in " + how_many(trial.calls, "call") + " at " + options_.at +
         (place.empty() ? "" : (trial.calls == 1 ? " at" : ", the first at") + place.substr(1)) + "\n" +
         lines_of(trial.moved, "  "));
    return code_of(trial.moved);
  }

  int each_operator() {
    std::map<std::string, std::vector<std::size_t>> by_operator;
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      if (tape_.entries[i].kind == capture::Entry::kCall) by_operator[replay::call_name(tape_, i)].push_back(i);
    }
    std::vector<Trial> moved;
    std::vector<std::string> still;
    std::map<std::string, std::vector<std::string>> not_tried;  // by the reason
    for (const auto& [name, calls] : by_operator) {
      if (replay::gives_fresh_memory(name)) continue;
      Trial trial = tried(name, calls);
      if (!trial.why_not.empty())
        not_tried[trial.why_not].push_back(name);
      else if (trial.moved.differing == 0)
        still.push_back(name);
      else
        moved.push_back(std::move(trial));
    }
    std::stable_sort(moved.begin(), moved.end(),
                     [](const Trial& a, const Trial& b) { return a.moved.moved_more_than(b.moved); });
    report(moved);
    if (!still.empty()) out_("no result moves: " + names_in_row(still, 12) + "\n");
    for (const auto& [why, names] : not_tried) out_("as usual (" + why + "): " + names_in_row(names, 12) + "\n");
    int code = moved.empty() && still.empty() ? kCannotHere : kDone;
    for (const Trial& trial : moved) code = std::max(code, code_of(trial.moved));
    return code;
  }

  void report(const std::vector<Trial>& trials) {
    if (trials.empty()) return out_("no operation of this step moves a result (" + way_text(options_.perturb) + ")\n");
    out_("most sensitive operations of this step (" + way_text(options_.perturb) + "):\n");
    std::vector<std::array<std::string, 4>> rows{{"operator", "calls", "loss", "gradient that moves most"}};
    for (std::size_t i = 0; i < trials.size() && i < kMostRows; ++i) rows.push_back(row(trials[i]));
    std::array<std::size_t, 4> widths{};
    for (const auto& row : rows) {
      for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::string line = " ";
      for (std::size_t c = 0; c < rows[i].size(); ++c) line += " " + filled_up(rows[i][c], widths[c]) + " ";
      line += i == 0 ? " first line" : replay::place_of(tape_, trials[i - 1].place);
      out_(line.substr(0, line.find_last_not_of(' ') + 1) + "\n");
      if (i == 0) continue;
      const Moved& moved = trials[i - 1].moved;
      if (!moved.now_finite.empty()) out_("      now finite: " + names_in_row(moved.now_finite) + "\n");
      if (!moved.now_not.empty()) out_("      no longer finite: " + names_in_row(moved.now_not) + "\n");
    }
    if (trials.size() > kMostRows)
      out_("  and " + how_many(trials.size() - kMostRows, "operator") + " that move less\n");
  }

  static std::array<std::string, 4> row(const Trial& trial) {
    const Moved& moved = trial.moved;
    std::string gradient = "same bits";
    if (const auto& most = moved.gradient ? moved.gradient : moved.other)
      gradient = moved_text(*most) + " (" + most->name.substr(most->name.find(' ') + 1) + ")";
    const std::string loss = moved.loss ? moved_text(*moved.loss) : moved.loss_is_finite ? "same bits" : "not finite";
    return {trial.op, std::to_string(trial.calls), loss, gradient};
  }

  const ReplayOptions& options_;
  const capture::Tape& tape_;
  const Say& out_;
  const Say& err_;
  const Perturb how_;
  std::vector<replay::NamedTensor> usual_;
};

}  // namespace

int run_perturb(const ReplayOptions& options, const capture::Tape& tape, const Say& out, const Say& err) {
  return Perturbing(options, tape, out, err).run();
}

}  // namespace finitude::cli
