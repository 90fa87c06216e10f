#include "explain/last_update.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "explain/evidence.h"
#include "explain/origin.h"

namespace finitude::explain {
namespace {

constexpr const char* kRate = "learning-rate";
constexpr const char* kOutlier = "exploding-gradient";
constexpr std::size_t kBefore = 3, kSince = 8;  // steps that say what is usual; and within which an update ruins a run
constexpr double kJump = 1e3, kJumpOfGradient = 1e6, kUsual = 2;  // times
constexpr std::size_t kFewSteps = 8;
constexpr double kGrown = 10;           // times
constexpr double kRuined = 1000;        // times
constexpr double kStill = 1e-3;         // of the largest weight: no loss of it grows by orders of magnitude
constexpr double kOutOfProportion = 2;  // a usual update is a hundredth of the weights

// Classes of an operation that met values out of its range or at a point where it has none: weights can lead to them.
// The others have a cause outside of the weights, or one that outranks them.
bool may_follow_from_weights(const std::string& cause_class) {
  return one_of(cause_class, {"exp-overflow", "overflow", "exploding-gradient", "log-of-zero", "log-of-negative",
                              "negative-domain", "division-by-zero", "domain-edge", "underflow", "zero-times-infinity",
                              "infinity-minus-infinity", "degenerate-linalg", "unknown", "learning-rate"});
}

void blame_rate(Finding& finding, const StepHistory& history, const std::string& evidence) {
  const std::string outlier = outlier_before(history);
  finding.text = (outlier.empty() ? "the updates are too large: " : outlier + ". Its update was too large: ") +
                 evidence + ". What follows from that: " + finding.text;
  finding.cause_class = outlier.empty() ? kRate : kOutlier;
  finding.fix_text = outlier.empty() ? "lower the learning rate, or add warm-up" : kOutlierFix;
  finding.fix_file.clear();  // the line of the birth is not where the learning rate is set
  finding.fix_line = 0;
  finding.fix_verified = false;
  finding.fix_edit.reset();
  // What was predicted of another cause says nothing of this one.
  for (Experiment& e : finding.experiments) e.predicted = e.confirms = false;
}

// Of the largest weight within the traced step: an optimizer with a closure updates between two backward passes.
std::optional<WeightGrowth> growth_within_step(const record::Trace& trace) {
  // Before the first backward pass: of each parameter since it was written last, which may be its initialization. After
  // it only those count that the step has written.
  std::unordered_map<record::StorageId, double> before;
  std::unordered_set<record::StorageId> updated;
  double from = 0, to = 0;
  bool after_backward = false;
  const auto is_parameter = [&trace](const record::TensorUse& use) {
    return use.storage < trace.storages.size() && trace.storages[use.storage].origin == record::Origin::kParameter;
  };
  for (const auto& op : trace.ops) {
    after_backward |= op.phase == record::Phase::kBackward;
    for (const auto& use : op.inputs) {
      if (use.written || !is_parameter(use)) continue;
      double& largest = before[use.storage];
      if (!after_backward) largest = std::max(largest, use.health.absmax);
      if (updated.contains(use.storage)) to = std::max(to, use.health.absmax);
    }
    for (const auto& use : op.outputs) {
      if (op.is_view || !is_parameter(use)) continue;
      if (after_backward) {
        updated.insert(use.storage);
      } else {
        before[use.storage] = 0;
      }
    }
  }
  for (const auto& [storage, value] : before) from = std::max(from, value);
  if (!(from > 0) || !std::isfinite(to)) return std::nullopt;
  return WeightGrowth{from, to, 0};
}

// Of the largest weight, from the start of the run to now.
std::optional<WeightGrowth> growth(const StepHistory& history, const record::Trace& trace) {
  if (history.param_absmax.empty() || history.loss.empty()) return growth_within_step(trace);
  const double from = history.param_absmax.front(), to = std::max(history.param_absmax.back(), parameters_now(trace));
  if (!(from > 0) || !std::isfinite(to)) return std::nullopt;
  return WeightGrowth{from, to, history.loss.size()};
}

std::string times(double factor) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g times", factor);
  return text;
}

// Whether a weight is among what the operation computes its result of; where it read values that are not finite, of
// those. True where the trace does not show it.
bool reads_what_weights_made(const record::Trace& trace, record::OpId id) {
  constexpr std::size_t kMostValues = 256;
  if (id >= trace.ops.size() || trace.ops[id].phase != record::Phase::kForward) return true;
  const bool is_bad = std::ranges::any_of(trace.ops[id].inputs, [](const auto& use) { return !use.health.ok(); });
  std::vector<std::pair<record::OpId, const record::TensorUse*>> open;
  for (const auto& use : trace.ops[id].inputs)
    if (!is_bad || !use.health.ok()) open.emplace_back(id, &use);
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open.size() > kMostValues) return true;
    const auto [reader, use] = open[i];
    const record::Origin origin =
        use->storage < trace.storages.size() ? trace.storages[use->storage].origin : record::Origin::kUnknown;
    if (origin == record::Origin::kParameter) return true;
    const record::OpId made = producer(trace, reader, *use);
    if (made == record::kNone) {
      if (origin != record::Origin::kBatch && origin != record::Origin::kConstant) return true;
      continue;
    }
    if (trace.ops[made].allocates) continue;
    for (const auto& in : trace.ops[made].inputs) open.emplace_back(made, &in);
  }
  return false;
}

bool is_finite(const replay::StepTrial& trial) { return trial.ran && trial.bad.empty(); }

}  // namespace

std::string outlier_before(const StepHistory& history) {
  const std::vector<double>&loss = history.loss, &gradient = history.grad_absmax, &rates = history.learning_rate;
  if (gradient.size() != loss.size() || (!rates.empty() && rates.size() != loss.size())) return "";
  // Values that are not finite are no measure: next to an Inf every value would be usual, and so would that Inf.
  const auto largest_before = [](const std::vector<double>& all, std::size_t at) {
    double largest = 0;
    for (std::size_t i = 0; i < at; ++i)
      if (std::isfinite(all[i])) largest = std::max(largest, std::fabs(all[i]));
    return largest;
  };
  const auto is_usual = [&](const std::vector<double>& all, std::size_t at) {
    return std::isfinite(all[at]) && std::fabs(all[at]) <= kUsual * largest_before(all, at);
  };
  const auto jumps = [&](const std::vector<double>& all, std::size_t at, double factor) {
    const double usual = largest_before(all, at);
    return usual > 0 && std::isfinite(all[at - 1]) && std::fabs(all[at]) >= factor * usual;
  };
  for (std::size_t i = kBefore; i < loss.size(); ++i) {
    const std::size_t since = loss.size() - i;
    const std::string when = since == 1 ? "of the step before" : std::to_string(since) + " steps before";
    const bool rate_is_usual = rates.empty() || is_usual(rates, i - 1);
    if (i > kBefore && jumps(loss, i, kJump)) {
      if (since > kSince || !is_usual(gradient, i - 1) || !rate_is_usual) return "";
      return "the loss " + when + " was " + figure(loss[i]) + " after " + figure(loss[i - 1]) +
             ", while gradients and learning rate had been as usual: what that step was given is out of proportion";
    }
    // Its gradients alone: what backward read was out of proportion, and not what forward did.
    if (jumps(gradient, i, kJumpOfGradient) && is_usual(loss, i)) {
      if (since > kSince || !rate_is_usual) return "";
      return "the largest gradient " + when + " was " + figure(gradient[i]) + " after " + figure(gradient[i - 1]) +
             ", while loss and learning rate were as usual: what its backward read or computed is out of proportion";
    }
  }
  return "";
}

bool grew_without_updates(const StepHistory& history) {
  const std::vector<double>&loss = history.loss, &gradient = history.grad_absmax, &rates = history.learning_rate;
  if (gradient.size() != loss.size() || rates.size() != loss.size() || loss.empty()) return false;
  if (history.param_absmax.empty() || !(history.param_absmax.front() > 0)) return false;
  const double still = kStill * history.param_absmax.front();
  const double largest_group = rates.back() > 0 ? std::max(1.0, history.lr_now / rates.back()) : 1;
  for (std::size_t begin = 0; begin < loss.size(); ++begin) {
    if (loss[begin] == 0) continue;
    double moved = 0;  // at most, before the step that is looked at
    for (std::size_t at = begin; at + 1 < loss.size(); ++at) {
      moved += largest_group * std::fabs(rates[at]) * std::max(1.0, gradient[at]);
      if (!(moved <= still) || !(std::fabs(loss[at + 1]) > std::fabs(loss[at]))) break;
      if (at + 1 - begin >= kBefore && std::fabs(loss[at + 1]) >= kJump * std::fabs(loss[begin])) return true;
    }
  }
  return false;
}

double parameters_now(const record::Trace& trace) {
  // Of each parameter since it was written last: the trace of a first step also sees how it was made, of memory that
  // nobody had written.
  std::unordered_map<record::StorageId, double> largest;
  for (const auto& op : trace.ops) {
    if (op.phase == record::Phase::kOptimizer) continue;
    for (const auto& use : op.inputs) {
      if (use.storage >= trace.storages.size() || trace.storages[use.storage].origin != record::Origin::kParameter)
        continue;
      double& value = largest[use.storage];
      value = use.written ? 0 : std::max(value, use.health.absmax);
    }
  }
  double now = 0;
  for (const auto& [storage, value] : largest) now = std::max(now, value);
  return now;
}

std::string growth_in_words(const WeightGrowth& grown) {
  return "weights grew from " + figure(grown.from) + " to " + figure(grown.to) +
         (grown.steps == 0 ? " within this step" : " in " + counted(grown.steps, "step"));
}

std::optional<WeightGrowth> grown_in_few_steps(const StepHistory& history, const record::Trace& trace) {
  const auto grown = growth(history, trace);
  return grown && grown->steps <= kFewSteps && grown->to >= kGrown * grown->from ? grown : std::nullopt;
}

std::string rates_of(const StepHistory& history, std::size_t steps) {
  if (history.lr_least > 0 && history.lr_now > history.lr_least)  // what is kept of earlier steps is one group's
    return " at learning rates from " + figure(history.lr_least) + " to " + figure(history.lr_now);
  // What the optimizer is set to now has moved no weight yet.
  const auto& all = history.learning_rate;
  if (all.empty()) return history.lr_now > 0 ? " at a learning rate of " + figure(history.lr_now) : "";
  const auto begin = all.end() - static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(steps, 1, all.size()));
  const auto [least, most] = std::minmax_element(begin, all.end());
  if (!(*most > 0)) return "";
  if (figure(*least) == figure(*most)) return " at a learning rate of " + figure(*most);
  return " at learning rates from " + figure(*least) + " to " + figure(*most);
}

void judge_grown_weights(Finding& finding, const StepHistory& history, const record::Trace& trace, record::OpId birth) {
  if (finding.cause_class == kRate || !may_follow_from_weights(finding.cause_class)) return;
  if (!reads_what_weights_made(trace, birth)) return;
  const auto grown = growth(history, trace);
  if (!grown || grown->to < kRuined * grown->from) return;
  if (finding.cause_class == kOutlier && !outlier_before(history).empty()) return;  // says so already
  if (grew_without_updates(history)) return;
  blame_rate(finding, history,
             "weights grew from " + figure(grown->from) + " to " + figure(grown->to) +
                 (grown->steps == 0 ? " within this step" : " since the first step") + rates_of(history, kFewSteps));
  finding.edits.clear();
  finding.confidence = "likely";
}

bool may_be_rate(const Finding& finding, const StepHistory& history, const record::Trace& trace, double ratio) {
  if (!may_follow_from_weights(finding.cause_class)) return false;
  return finding.cause_class == kRate || ratio >= kOutOfProportion || grown_in_few_steps(history, trace);
}

void judge_last_update(Finding& finding, const StepHistory& history, const record::Trace& trace,
                       const UpdateTrials& trials) {
  if (!is_finite(trials.without) || !may_be_rate(finding, history, trace, trials.ratio)) return;
  if (finding.cause_class != kRate && (finding.cause_class != kOutlier || outlier_before(history).empty())) {
    const auto grown = grown_in_few_steps(history, trace);
    const bool is_large = trials.ratio >= kOutOfProportion;
    std::string text;
    if (is_large) text += "the last one was " + times(trials.ratio) + " as large as the weights before it";
    if (grown) {
      text += std::string(is_large ? ", and " : "") + growth_in_words(*grown);
    }
    blame_rate(finding, history, text + rates_of(history, grown ? grown->steps : 1));
  }
  for (Experiment& e : finding.experiments) {
    if (e.name.find("the last update") != std::string::npos)
      e.predicted = e.confirms = e.outcome == finding.judged + " finite";
  }
  finding.confidence = is_finite(trials.smaller) ? "proven" : "likely";  // one experiment is no proof
  finding.fix_tried = is_finite(trials.smaller) ? "the last update 10 times smaller" : "the last update taken back";
  finding.fix_outcome = finding.judged + " finite; one step does not show which learning rate the run needs";
}

}  // namespace finitude::explain
