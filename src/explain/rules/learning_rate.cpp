// A learning rate that is not a number, or one so high that weights and loss grew by orders of magnitude per
// step until something overflowed. The overflow is the first sign, not the cause.
#include <algorithm>
#include <cmath>

#include "explain/last_update.h"
#include "explain/probe.h"
#include "explain/range.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

constexpr std::size_t kRecent = 8;  // an explosion takes few steps; slow drift is another matter
constexpr double kLossGrowth = 1e3;
constexpr double kWeightGrowth = 10;

struct Growth {
  double first = 0, last = 0;
  std::size_t steps = 0;  // from the one to the other
};

// Smallest to last of the recent entries, if the last is the largest of them.
Growth growth_of(const std::vector<double>& all) {
  Growth growth;
  const std::size_t n = std::min(all.size(), kRecent);
  if (n < 2) return growth;
  const auto begin = all.end() - static_cast<std::ptrdiff_t>(n);
  const double last = std::fabs(all.back());
  double smallest = last;
  auto at = all.end() - 1;
  for (auto it = begin; it != all.end(); ++it) {
    if (std::fabs(*it) > last) return growth;
    if (*it != 0 && std::fabs(*it) < smallest) smallest = std::fabs(*it), at = it;
  }
  return {smallest, last, static_cast<std::size_t>(all.end() - 1 - at)};
}

// A rate that became many times what it had been before, and the signals that grew with it.
constexpr double kRateJump = 10, kSignalGrowth = 3;
constexpr std::size_t kBeforeJump = 3;  // steps: the first rates of a warm-up are no measure

struct Jump {
  double before = 0, after = 0;
  std::size_t steps = 0;  // taken since, the first with the new rate among them
};

std::optional<Jump> jump_of(const std::vector<double>& rates) {
  double largest = 0;
  std::optional<Jump> jump;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (i >= kBeforeJump && largest > 0 && rates[i] >= kRateJump * largest)
      jump = Jump{largest, rates[i], rates.size() - i};
    largest = std::max(largest, rates[i]);
  }
  return jump && jump->steps <= kRecent ? jump : std::nullopt;
}

// Is the last entry, of a step that began with weights of the new rate, far beyond what was usual before?
bool grew_since(const std::vector<double>& all, const Jump& jump) {
  if (jump.steps < 2 || all.size() < jump.steps + kBeforeJump) return false;
  const auto end = all.end() - static_cast<std::ptrdiff_t>(jump.steps) + 1;  // that step began with the old weights
  const auto begin =
      end - static_cast<std::ptrdiff_t>(std::min<std::size_t>(kRecent, static_cast<std::size_t>(end - all.begin())));
  double usual = 0;
  for (auto it = begin; it != end; ++it) usual = std::max(usual, std::fabs(*it));
  return usual > 0 && std::fabs(all.back()) >= kSignalGrowth * usual;
}

// The rate itself in the call of the optimizer: add_(grad, alpha=nan), addcdiv_(..., value=nan).
bool non_finite_step_size(const record::Op& op) {
  return std::any_of(op.scalars.begin(), op.scalars.end(), [](const auto& scalar) {
    return one_of(scalar.arg, {"alpha", "value", "lr"}) && scalar.number && !std::isfinite(*scalar.number);
  });
}

std::optional<Finding> not_a_number(const Scene& s) {
  const auto& history = s.evidence.history;
  const bool applied = s.birth.kind == "optimizer" || s.birth.kind == "state";
  const bool rate = !std::isfinite(history.lr_now) ||
                    (!history.learning_rate.empty() && !std::isfinite(history.learning_rate.back()));
  const bool in_call = s.op && s.birth.kind == "optimizer" && non_finite_step_size(*s.op);
  if (!(applied && rate) && !in_call) return std::nullopt;
  const double value =
      !std::isfinite(history.lr_now) || history.learning_rate.empty() ? history.lr_now : history.learning_rate.back();
  Finding result = finding(
      s, "learning-rate", kScoreOrigin + 20,
      rate ? "the learning rate is " + figure(value) : "the step size handed to " + s.op->name + " is not finite",
      std::string("guard the schedule against ") +
          (std::isinf(value) ? "a division by 0 and an overflow" : "0 / 0 (a warm-up of 0 steps)") +
          " and check math.isfinite(lr)");
  conclude(result, true);
  return result;
}

// What overflows first may be anything then: an exponential just as well as a product.
std::optional<Finding> after_jump(const Scene& s) {
  const StepHistory& history = s.evidence.history;
  const auto jump = jump_of(history.learning_rate);
  if (!jump) return std::nullopt;
  std::vector<double> weights = history.param_absmax;
  if (const double now = parameters_now(s.trace); now > 0) weights.push_back(now);
  const Growth weight = growth_of(weights);
  const bool loss = grew_since(history.loss, *jump), gradient = grew_since(history.grad_absmax, *jump);
  const bool heavier = weight.steps > 0 && weight.last >= kWeightGrowth * weight.first;
  if (!loss && !gradient && !heavier) return std::nullopt;
  std::string text = "the learning rate rose from " + figure(jump->before) + " to " + figure(jump->after) + ", " +
                     counted(jump->steps, "step") + " before; since then ";
  if (loss)
    text += "the loss grew to " + figure(history.loss.back());
  else if (gradient)
    text += "the largest gradient grew to " + figure(history.grad_absmax.back());
  else
    text += "the weights grew from " + figure(weight.first) + " to " + figure(weight.last);
  text += ", and " + s.first->name + " overflows as a result";
  Finding result = finding(s, "learning-rate", kScoreRange + 60, text,
                           "check the schedule at that step, or lower the learning rate");
  result.fix_file.clear();  // the line of the birth is not where the learning rate is set
  result.fix_line = 0;
  conclude(result, true);
  return result;
}

class LearningRate : public Rule {
 public:
  const char* name() const override { return "learning-rate"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (auto found = not_a_number(s)) return found;
    const auto excess = s.first ? find_excess(*s.first) : std::nullopt;
    if (!excess || sense::is_half(excess->dtype)) return std::nullopt;
    if (auto found = after_jump(s)) return found;
    if (grew_without_updates(evidence.history)) return std::nullopt;
    if (auto found = steadily(s, *excess)) return found;
    return at_once(s, *excess);
  }

 private:
  // Weights and loss grew by orders of magnitude.
  static std::optional<Finding> steadily(const Scene& s, const RangeExcess& excess) {
    if (excess.division) return std::nullopt;
    const StepHistory& history = s.evidence.history;
    if (history.loss.empty()) return std::nullopt;  // no update yet
    const Growth loss = growth_of(history.loss), gradient = growth_of(history.grad_absmax);
    std::vector<double> weights = history.param_absmax;
    if (const double now = parameters_now(s.trace); now > 0) weights.push_back(now);
    const Growth weight = growth_of(weights);
    const bool weights_grew = weight.steps > 0 && weight.last >= kWeightGrowth * weight.first;
    const bool signal_grew = (loss.steps > 0 && loss.last >= kLossGrowth * loss.first) ||
                             (gradient.steps > 0 && gradient.last >= kLossGrowth * gradient.first) ||
                             (weight.steps > 0 && weight.last >= kLossGrowth * weight.first);
    if (!weights_grew || !signal_grew) return std::nullopt;
    // A loss of exponentials grows by as much before they overflow, whatever the learning rate: then the weights have
    // to say.
    if (excess.exponential && !(weight.last >= kLossGrowth * weight.first)) return std::nullopt;
    if (const std::string outlier = outlier_before(history); !outlier.empty() && !excess.exponential)
      return of_outlier(s, excess, weight, outlier);
    std::string text = "the updates are too large: ";
    if (loss.steps > 0)
      text += "loss " + figure(loss.first) + " to " + figure(loss.last) + " over the last " +
              counted(loss.steps, "step") + ", ";
    // Of weights there is what they began with and what they are now: no steps to count.
    text += "weights " + figure(weight.first) + " to " + figure(weight.last) + rates_of(history, loss.steps);
    text += "; " + s.first->name + " overflows as a result";
    Finding result =
        finding(s, "learning-rate", kScoreRange + 60, text, "lower the learning rate, add warm-up, or clip gradients");
    result.fix_file.clear();  // the line of the birth is not where the learning rate is set
    result.fix_line = 0;
    Probe probe(s, s.culprit);
    if (excess.dtype != sense::DType::kFloat64) probe.in_float64(true);
    probe.conclude(result, true);
    return result;
  }

  static Finding of_outlier(const Scene& s, const RangeExcess& excess, const Growth& weight,
                            const std::string& outlier) {
    Finding result = finding(s, "exploding-gradient", kScoreRange + 60,
                             outlier + ". Its update took the weights from " + figure(weight.first) + " to " +
                                 figure(weight.last) + "; " + s.first->name + " overflows as a result",
                             kOutlierFix);
    result.fix_file.clear();  // the line of the birth is not where the batch is made
    result.fix_line = 0;
    Probe probe(s, s.culprit);
    if (excess.dtype != sense::DType::kFloat64) probe.in_float64(true);
    probe.conclude(result, true);
    return result;
  }

  // Within the first steps of the run: too few for the loss to show it.
  static std::optional<Finding> at_once(const Scene& s, const RangeExcess& excess) {
    const auto grown = grown_in_few_steps(s.evidence.history, s.trace);
    if (!grown || excess.division) return std::nullopt;
    const std::string text = "the updates are too large: " + growth_in_words(*grown) +
                             rates_of(s.evidence.history, grown->steps) + "; " + s.first->name +
                             " overflows as a result";
    Finding result = finding(s, "learning-rate", kScoreRange + 60, text, "lower the learning rate, or add warm-up");
    result.fix_file.clear();  // the line of the birth is not where the learning rate is set
    result.fix_line = 0;
    conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> learning_rate() { return std::make_unique<LearningRate>(); }

}  // namespace finitude::explain
