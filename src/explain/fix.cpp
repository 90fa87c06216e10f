// See fix.h.
#include "explain/fix.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "explain/evidence.h"
#include "explain/fill.h"
#include "explain/last_update.h"
#include "explain/without_half.h"
#include "locate/flows_on.h"
#include "replay/play_deadline.h"

namespace finitude::explain {
namespace {

using replay::Edit;
using replay::StepTrial;

// Is what an exception of the program was about judged? What the program makes of another value is not known, so no
// change of it is a verified fix.
bool is_of_value(const std::string& judged) { return judged.starts_with("value "); }

std::string listed(const std::vector<std::string>& all) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> names;  // the closure of one step gives several losses
  for (const std::string& name : all)
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

// LBFGS and its kind read losses as numbers of Python: those are on the tape as they were.
bool is_of_update(const StepTrial& trial, const std::string& judged) {
  return judged.ends_with("gradients") && !trial.bad.empty() && std::ranges::all_of(trial.bad, [](const auto& b) {
           return b.starts_with("parameter ") || b.starts_with("state ");
         });
}

std::string outcome_of(const StepTrial& trial, const std::string& judged, bool in_optimizer) {
  if (!trial.ran) return "could not be tried: " + trial.why_not;
  if (is_of_update(trial, judged) && !in_optimizer)
    return "cannot be determined: " + judged + " are finite, and the optimizer wrote " + listed(trial.bad) +
           " with numbers that it had from the step as it failed";
  if (!trial.bad.empty()) return "not finite: " + listed(trial.bad);
  if (!trial.given.empty()) {
    const bool gradients =
        std::ranges::all_of(trial.given, [](const auto& g) { return g.starts_with("gradient of "); });
    return "cannot be determined from one rank's tape: this rank's own values are finite, " +
           (trial.given.size() == 1 ? trial.given.front() + " comes"
                                    : counted(trial.given.size(), gradients ? "gradient" : "value") + " come") +
           " from all ranks as recorded";
  }
  if (!trial.difference.empty()) return "finite, but it also changes what was finite: " + trial.difference;
  return judged + " finite, " +
         (trial.compared == 0 ? std::string("nothing else in reach to compare")
                              : counted(trial.compared, "value") + " that the birth did not touch as before") +
         (trial.rounding_in.empty() ? "" : ", within what rounding in " + trial.rounding_in + " moves them") +
         (is_of_value(judged) ? "; what the program makes of that value is not known" : "");
}

std::string place_words(const replay::GuiltyElement& element) {
  std::string out;
  for (std::size_t d = 0; d < element.index.size(); ++d) out += (d ? ", " : "[") + std::to_string(element.index[d]);
  return out.empty() ? out : out + "]";
}

// "batch[0][2, 5]", "elements [6], [7] of an input and [0] of another".
std::string elements_words(const std::vector<replay::GuiltyElement>& elements) {
  std::string out;
  std::size_t unnamed = 0;
  for (std::size_t i = 0; i < elements.size();) {
    const replay::GuiltyElement& first = elements[i];
    std::string places;
    std::size_t count = 0;
    for (; i < elements.size() && elements[i].number == first.number; ++i, ++count)
      places += (count ? ", " : "") + first.input + place_words(elements[i]);
    if (first.input.empty()) {
      const std::string of = unnamed++ == 0 ? "an input" : "another";
      if (places.empty())
        places = of;
      else
        places = (out.empty() ? count > 1 ? "elements " : "element " : "") + places + " of " + of;
    }
    out += (out.empty() ? "" : i < elements.size() ? ", " : " and ") + places;
  }
  return out;
}

// Causes of which one wants to know whether older weights would have done.
bool weights_may_have_grown(const std::string& cause_class) {
  return cause_class == "learning-rate" || cause_class == "exploding-gradient" || cause_class == "overflow" ||
         cause_class == "exp-overflow";
}

struct Limit {
  std::string name;            // of the experiment
  std::vector<double> values;  // by element that was NaN; empty: there is no limit, or it could not be tried
  std::string only_from;       // "above" or "below": no such values lie on the other side, where it has another limit
};

bool is_near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(a)); }

// Two steps towards the zero, from each side on which there are such values, have to agree, and so has a step in
// another direction where there are several zeros: the quotient may depend on the way.
Limit find_limit(replay::StepLab& lab, const replay::Beside& beside) {
  constexpr double kNear = 1e-5, kFar = 1e-3;
  const double side = beside.above ? 1 : -1;
  const std::vector<double> near = lab.beside(beside, side * kNear), far = lab.beside(beside, side * kFar);
  const std::vector<double> other = lab.beside(beside, -side * kNear);
  const bool both = beside.above && beside.below;
  replay::Beside another_way = beside;
  another_way.uneven = true;
  const std::vector<double> uneven = lab.beside(another_way, side * kNear / 10);  // up to 10 kNear
  Limit found{
      "near the zero, " + figure(side * kNear) + " and " + figure(side * kFar) + " in its place, in float64", {}, {}};
  if (near.size() != far.size() || (both && near.size() != other.size()) || near.size() != uneven.size()) return found;
  for (std::size_t i = 0; i < near.size(); ++i) {
    const bool agrees = i < other.size() && is_near(near[i], other[i], 1e-3);
    if (!std::isfinite(near[i]) || !is_near(near[i], far[i], 0.02) || (both && !agrees) ||
        !is_near(near[i], uneven[i], 1e-3))
      return {};
    if (!agrees && i < other.size() && std::isfinite(other[i])) found.only_from = side > 0 ? "above" : "below";
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", std::abs(near[i]) < 1e-3 ? 0 : near[i]);
    found.values.push_back(std::strtod(text, nullptr));
  }
  return found;
}

class Trials {
 public:
  Trials(Finding& finding, replay::StepLab& lab, const TimeBudget& budget, const record::Trace* trace,
         const StepHistory* history)
      : finding_(finding), lab_(lab), budget_(budget), trace_(trace), history_(history) {}

  bool float32_fails() const { return float32_fails_; }

  void run() {
    finding_.judged = lab_.judged();
    if (std::string why = lab_.faithful(); !why.empty()) {
      finding_.fix_outcome = "not tried on the whole step: " + why;
      repeats();
      return;
    }
    // What the other rank gave is as it was recorded: nothing that is changed here can make it finite.
    if (finding_.cause_class == "other-rank") return;
    limit_ = std::min(budget_.most, std::max(budget_.least, budget_.times_the_step * lab_.step_seconds()));
    const double step = lab_.step_seconds();
    const replay::PlayDeadline deadline(began_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                     std::chrono::duration<double>(limit_)));
    // It may settle the class, which must not depend on how busy the machine is: made in any case, it is two replays.
    judge_fill(finding_, lab_.filled((limit_ - spent()) / 4), trace_);
    limit();
    fix();
    if (!finding_.fix_edit) finding_.fix_text += remark_;
    if (allows(3 * step)) {
      const int same = lab_.again(3);
      if (!is_over("whole step, again as it was, 3 times"))
        add("whole step, again as it was, 3 times",
            same == 3 ? "the same bits each time" : "other bits in " + counted(3 - same, "run"), same == 3);
    }
    as_it_is("whole step in float64", 4 * step, [&] {
      Edit edit;
      edit.kind = Edit::Kind::kCompute;
      edit.dtype = sense::DType::kFloat64;
      edit.finite_only = true;
      if (!finding_.edits.empty()) edit.ops = finding_.edits.front().ops;
      return lab_.run(edit);
    });
    rows();
    as_it_is("whole step, deterministic kernels", 2 * step, [&] { return lab_.deterministic(); });
    earlier_weights();
    finding_.step_seconds = step;
    finding_.tried_seconds = spent();
    finding_.budget_seconds = limit_;
  }

 private:
  double spent() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

  // A step whose replay is not what it was: do its operators agree with themselves, and does the number of threads
  // decide? Says so, and judges nothing: what no operator wrote is in none of the replays.
  void repeats() {
    constexpr int kTimes = 3;
    const double step = lab_.step_seconds();
    if (2 * kTimes * step > std::min(budget_.most, std::max(budget_.least, budget_.times_the_step * step))) return;
    const replay::Repeats many = lab_.repeats(kTimes, 0);
    if (many.runs == 0 || !many.has_results) return;
    const replay::Repeats one = many.threads == 1 ? many : lab_.repeats(kTimes, 1);
    if (one.runs == 0) return;
    const auto words = [](const replay::Repeats& of) {
      const std::string threads = of.threads == 1 ? "one thread" : std::to_string(of.threads) + " threads";
      return (of.alike == of.runs ? "the same bits with " : "other bits each time with ") + threads +
             (of.with_bad == 0         ? ", finite"
              : of.with_bad == of.runs ? ", not finite"
                                       : ", not always finite");
    };
    std::string outcome = words(many);
    if (many.threads != 1) outcome += "; " + words(one);
    if (one.alike != one.runs)
      outcome += ": order-dependent, whatever the number of threads";
    else if (many.alike != many.runs || many.with_bad != one.with_bad)
      outcome += ": threads-dependent";
    add("whole step played from its operators, " + std::to_string(kTimes) + " times each", outcome, std::nullopt);
  }

  bool allows(double seconds) {
    if (spent() + seconds <= limit_) return true;
    finding_.out_of_time = true;
    return false;
  }

  // Is the time up, in the middle of that experiment? Then it says nothing but what became of the time.
  bool is_over(std::string name) {
    if (spent() < limit_) return false;
    finding_.out_of_time = true;
    add(std::move(name), "stopped when the time was up", std::nullopt);
    return true;
  }

  void add(std::string name, std::string outcome, std::optional<bool> confirms) {
    Experiment experiment{std::move(name), std::move(outcome), confirms.value_or(false)};
    experiment.predicted = confirms.has_value();
    finding_.experiments.push_back(std::move(experiment));
  }

  // Does a limit that one zero has look like a constant of the formula? Twelfths are; any other number may be made of
  // what this step computes with.
  static bool is_constant(double limit) {
    constexpr double kRounded = 0.006;  // of a third that was rounded to three digits, in twelfths
    return std::fabs(12 * limit - std::round(12 * limit)) <= kRounded;
  }

  // 0 / 0 may have a limit, which is another value than an epsilon in the denominator makes of it.
  void limit() {
    if (!finding_.beside || finding_.edits.empty() || !allows(8 * lab_.step_seconds())) return;
    const Limit found = find_limit(lab_, *finding_.beside);
    if (found.values.empty() || std::ranges::all_of(found.values, [](double v) { return v == 0; })) return;
    const auto [low, high] = std::ranges::minmax(found.values);
    const std::string what = low == high ? figure(low) : "values from " + figure(low) + " to " + figure(high);
    add(found.name, "the quotient tends to " + what, std::nullopt);
    finding_.text += "; near the zero the quotient tends to " + what;
    finding_.text += found.only_from.empty() ? ": that is its limit there"
                                             : " from " + found.only_from + ", where all values of this step lie; " +
                                                   "from the other side it has another limit";
    const std::string otherwise = "a clamp or an epsilon in the denominator alone makes 0 of it";
    if (low != high || (found.values.size() == 1 && !is_constant(low))) {
      remark_ = "; but " + otherwise +
                "; or, not tried here, add the epsilon to what numerator and denominator are both computed from";
      return;
    }
    Edit edit;
    edit.kind = Edit::Kind::kLeaveOut;
    edit.ops = finding_.edits.front().ops;
    edit.to = low;
    edit.text = "0 / 0 replaced by its limit " + what + " with torch.where, and its derivative by 0";
    edit.advice = "give the quotient its limit where both are zero: torch.where(zero, " + what +
                  ", a / torch.where(zero, 1, b)) with zero = (b == 0); " + otherwise;
    finding_.edits.insert(finding_.edits.begin(), std::move(edit));
    // Where that is not enough, as with several divisions, what is advised instead is not the limit.
    remark_ = "; but " + otherwise + ", and its limit is " + what;
  }

  // What the report names is what was verified. An edit that the text of the rule does not name is named instead of it;
  // what the text names stays where it was not tried. is_refuted: an edit that the text names did not do.
  std::string advice_of(const Edit& edit, bool is_refuted) const {
    if (!edit.advice.empty()) return edit.advice + edit.also;
    const std::string& of_rule = finding_.fix_text;
    if (finding_.fix_is_no_edit) return of_rule + " (not tried here); tried: " + edit.text + remark_;
    if (edit.how.empty()) return of_rule + edit.also + remark_;
    return edit.how + edit.also + remark_ +
           (is_refuted || of_rule.empty() ? std::string() : "; or, not tried here, " + of_rule);
  }

  void fix() {
    int nearest = 0;
    bool is_refuted = false;
    double each = 4 * lab_.step_seconds();  // two replays, copies and comparisons
    for (const Edit& edit : finding_.edits) {
      if (!allows(each)) break;
      const StepTrial trial = lab_.run(edit);
      each = std::max(each, trial.seconds);
      const bool in_float32 = edit.kind == Edit::Kind::kCompute && edit.dtype == sense::DType::kFloat32;
      float32_fails_ |= in_float32 && trial.ran && !trial.bad.empty() && trial.given.empty();
      std::string outcome = outcome_of(trial, finding_.judged, finding_.in_optimizer);
      if (!trial.verified() && is_over("whole step, " + edit.text)) return;
      const bool took_time = lab_.step_seconds() > 0 && trial.seconds > lab_.step_seconds();
      if (trial.ran || took_time) add("whole step, " + edit.text, outcome, std::nullopt);
      if (trial.verified()) {
        finding_.fix_verified = !is_of_value(finding_.judged);
        finding_.fix_tried = edit.text;
        finding_.fix_outcome = std::move(outcome);
        finding_.fix_edit = edit;
        finding_.fix_text = advice_of(edit, is_refuted);
        if (!edit.file.empty()) finding_.fix_file = edit.file, finding_.fix_line = edit.line;
        return;
      }
      is_refuted |= trial.ran && edit.advice.empty() && edit.how.empty();
      // Of those that did not do, the one that came nearest is reported.
      const int near = !trial.ran ? 1 : !trial.bad.empty() ? 2 : 3;
      if (near > nearest) {
        nearest = near;
        finding_.fix_tried = edit.text;
        finding_.fix_outcome = std::move(outcome);
      }
    }
  }

  void rows() {
    if (!allows(4 * lab_.step_seconds())) return;
    // Half of what is left: the others say as much.
    replay::JudgedOp birth{finding_.born_in, {}};
    if (trace_ != nullptr && birth.op < trace_->ops.size())
      for (std::size_t i = 0; i < trace_->ops[birth.op].outputs.size(); ++i)
        if (!locate::flows_on(*trace_, birth.op, i)) birth.notes.push_back(i);
    replay::GuiltyRows found = lab_.guilty_rows(finding_.rows, birth, (limit_ - spent()) / 2);
    const std::string searched = "whole step, all rows of an input replaced by copies of one, " +
                                 counted(static_cast<std::size_t>(found.replays), "trial");
    if (found.replays > 0 && is_over(searched)) return;
    if (!found.ran || found.guilty.empty()) {
      if (found.replays > 0)
        add(searched, found.why_not.empty() ? "no row is found that makes the step fail" : found.why_not, std::nullopt);
      return;
    }
    if (found.together) std::erase(found.guilty, found.filler);  // a copy of itself changes nothing
    finding_.batch_rows = found.rows;
    finding_.of_batch = found.of_batch && !finding_.in_optimizer;
    finding_.across = found.across;
    if (!found.more && !found.together && found.one_by_one &&
        static_cast<std::int64_t>(found.guilty.size()) < found.rows)
      finding_.guilty = found.guilty;
    std::string which;
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < std::min(found.guilty.size(), kShown); ++i)
      which += (i ? ", " : "") + std::to_string(found.guilty[i]);
    if (found.guilty.size() > kShown) which += " and " + std::to_string(found.guilty.size() - kShown) + " more";
    const char* const what = found.up_to_birth ? "step up to the birth" : "whole step";
    const std::string well = found.up_to_birth ? "what is born there is finite" : finding_.judged + " finite";
    const std::string fails = found.up_to_birth ? "makes it fail" : "makes the step fail";
    const bool of_samples = found.of_samples && !finding_.in_optimizer && finding_.is_row_a_sample(found.rows);
    const std::string one = of_samples ? "sample" : "row";
    add(std::string(what) + ", " + one + (found.guilty.size() > 1 ? "s " : " ") + which + " of " +
            std::to_string(found.rows) + (found.of_samples && !finding_.in_optimizer ? "" : " of an input") +
            " replaced by a copy of " + one + " " + std::to_string(found.filler),
        (found.more ? "still not finite: there are more of them" : well) +
            (found.together            ? "; none of them alone " + fails
             : !found.one_by_one       ? "; so many are not tried one by one"
             : found.guilty.size() > 1 ? "; each of them alone " + fails
                                       : ""),
        std::nullopt);
    if (of_samples) {
      finding_.experiments.back().rows = found.guilty;
      finding_.experiments.back().of_rows = found.rows;
    }
    elements(found, one + " ", what, well, fails);
  }

  // What of the one guilty sample it is: the token of a text, the column of a table.
  void elements(const replay::GuiltyRows& found, const std::string& one, const char* what, const std::string& well,
                const std::string& fails) {
    if (found.elements.empty()) return;
    const std::string which = elements_words(found.elements);
    const bool several = found.elements.size() > 1;
    add(std::string(what) + ", of " + one + std::to_string(found.guilty.front()) + " only " + which + " replaced by " +
            (several ? "those of " : "that of ") + one + std::to_string(found.filler),
        well + (!several                  ? ""
                : found.elements_together ? "; none of them alone " + fails
                                          : "; each of them alone " + fails),
        std::nullopt);
  }

  // Did the last update lead to it, or would the same batch have failed before? One update further back may be needed:
  // what is not finite either says nothing against a learning rate that is too high.
  void earlier_weights() {
    const double each = 2 * lab_.step_seconds();
    UpdateTrials trials;
    const bool knows = trace_ != nullptr && history_ != nullptr;
    if (knows) trials.ratio = lab_.size_of_update();
    // It may settle the class, which must not depend on how busy the machine is.
    const bool settles = knows && may_be_rate(finding_, *history_, *trace_, trials.ratio);
    for (const auto& [share, name] : {std::pair{0.0, "whole step, the last update taken back"},
                                      std::pair{0.1, "whole step, the last update 10 times smaller"}}) {
      if (!allows(each) && !(settles && share == 0)) break;
      const StepTrial trial = lab_.after_share_of_update(share);
      if (!trial.ran && is_over(name)) return;
      if (!trial.ran) {
        if (weights_may_have_grown(finding_.cause_class) && !trial.why_not.empty())
          add(name, "not tried: " + trial.why_not, std::nullopt);
        return;
      }
      add(name, whether_finite(trial), std::nullopt);
      (share == 0 ? trials.without : trials.smaller) = trial;
    }
    if (settles) judge_last_update(finding_, *history_, *trace_, trials);
  }

  std::string whether_finite(const StepTrial& trial) const {
    return trial.bad.empty() ? finding_.judged + " finite" : "not finite: " + listed(trial.bad);
  }

  // Nothing is predicted of these: they say, they do not judge.
  template <typename Run>
  void as_it_is(const char* name, double needs, const Run& run) {
    if (!allows(needs)) return;
    const StepTrial trial = run();
    if (!trial.ran) {
      is_over(name);
      return;
    }
    add(name, whether_finite(trial), std::nullopt);
  }

  Finding& finding_;
  replay::StepLab& lab_;
  const TimeBudget budget_;
  const record::Trace* const trace_;
  const StepHistory* const history_;
  double limit_ = 0;
  bool float32_fails_ = false;
  std::string remark_;  // about the limit of the quotient, for whatever is advised instead of it
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

bool try_on_step(Finding& finding, replay::StepLab& lab, const TimeBudget& budget, const record::Trace* trace,
                 const StepHistory* history) {
  Trials trials(finding, lab, budget, trace, history);
  trials.run();
  return trials.float32_fails() && finding.cause_class.starts_with(kHalf);
}

void doubt_half(Finding& finding) {
  finding.confidence = "possible";
  finding.text += "; the step in float32 fails too";
}

}  // namespace finitude::explain
