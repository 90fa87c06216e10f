#include "incident/onset.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "show/findings.h"
#include "show/read.h"
#include "signal/onset.h"

namespace finitude::incident {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kWarmUp = 3;  // steps: the first rates of a warm-up are no measure
constexpr double kRateJump = 10;
constexpr double kWarnedGrowth = 10;  // still, at the last step, of what a warning says grew
constexpr double kAgain = 2;  // times the steps to the next tenfold: without a warning since, the growth is over

struct RateJump {
  std::size_t at = 0;  // index of the first step with it
  double before = 0, after = 0;
};

// The last time that the learning rate became many times what it had ever been.
std::optional<RateJump> jump_of_rate(const std::vector<AppliedStep>& steps) {
  std::optional<RateJump> found;
  double largest = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double rate = steps[i].rate;
    if (!std::isfinite(rate)) continue;
    if (i >= kWarmUp && largest > 0 && rate >= kRateJump * largest) found = RateJump{i, largest, rate};
    largest = std::max(largest, rate);
  }
  return found;
}

std::string digits(double value, int count) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", count, value);
  return text;
}

std::string in_words(const ordered_json& one) {
  const std::string quantity = one["quantity"], step = one["step"].dump();
  const double from = one["from"], to = one["to"];
  if (quantity == "learning-rate")
    return "the learning rate rose from " + digits(from, 4) + " to " + digits(to, 4) + " after step " + step;
  const std::string what = quantity == "loss"     ? "the loss"
                           : quantity == "weight" ? "the largest weight of " + one["name"].get<std::string>()
                                                  : "the largest gradient";
  const std::string since =
      "since step " + step + (one.contains("at_most") ? " or earlier, which is as far back as steps are kept" : "");
  return what + " grew " + since + ", by a factor of " + digits(one["factor_per_step"], 3) + " a step, from " +
         digits(from, 4) + " to " + digits(to, 4) + (one.contains("at") ? " at step " + one["at"].dump() : "");
}

// The learning rate of that step, or of the first one that is kept.
json rate_at(const std::vector<AppliedStep>& steps, std::uint64_t step) {
  const auto found = std::ranges::find_if(steps, [&](const AppliedStep& one) { return one.step >= step; });
  return found == steps.end() ? json() : show::number(found->rate);
}

bool is_of_loss_or_gradient(const json& warning) { return warning["name"] == "loss" || warning["name"] == "gradient"; }

// "loss", "gradient" or "weight".
std::string quantity_of(const json& warning) {
  return warning.value("quantity", warning["name"].get_ref<const std::string&>());
}

double evidence(const json& warning, const char* key) {
  const auto found = warning["evidence"].find(key);
  return found != warning["evidence"].end() && found->is_number() ? found->get<double>() : 0;
}

// A growth is warned of again when it is tenfold.
bool lasts_until(const json& warning, std::uint64_t step) {
  const double factor = evidence(warning, "factor_per_step");
  const std::uint64_t warned = warning["step"];
  return factor > 1 && static_cast<double>(step - std::min(step, warned)) <= kAgain * std::log(10.0) / std::log(factor);
}

bool is_growth(const ordered_json& one) { return one["quantity"] != "learning-rate"; }

// What was warned of while something else began to grow, or shortly before the end, and whose own end is too steep for
// a fit, grew as well.
void add_from_warnings(const std::vector<const json*>& warnings, const AppliedStep& last, ordered_json* found) {
  const bool is_alone = std::ranges::none_of(*found, is_growth);
  for (const json* warning : warnings) {
    const std::uint64_t since = (*warning)["since"], warned = (*warning)["step"];
    const std::string quantity = quantity_of(*warning);
    const auto is_same = [&](const ordered_json& one) { return one["quantity"] == quantity; };
    const auto began_within = [&](const ordered_json& one) {
      return is_growth(one) && since < one["step"] && one["step"] <= warned;
    };
    if (quantity == "weight" || std::ranges::any_of(*found, is_same)) continue;
    if (is_alone ? !lasts_until(*warning, last.step) : std::ranges::none_of(*found, began_within)) continue;
    const double from = evidence(*warning, "from"), to = std::fabs(quantity == "loss" ? last.loss : last.gradient);
    if (!(from > 0 && to >= kWarnedGrowth * from && std::isfinite(to) && last.step > since)) continue;
    found->push_back({{"quantity", quantity},
                      {"step", since},
                      {"from", from},
                      {"to", to},
                      {"factor_per_step", std::exp(std::log(to / from) / static_cast<double>(last.step - since))}});
  }
}

// A warning of the same growth has seen more of it than its end: the two name one onset.
void take_from_warnings(const std::vector<const json*>& warnings, std::uint64_t last_step, ordered_json* one) {
  for (const json* warning : warnings) {
    const std::uint64_t since = (*warning)["since"], begin = (*one)["step"];
    if (quantity_of(*warning) != (*one)["quantity"] || since >= begin || (*warning)["step"] < begin) continue;
    const double from = evidence(*warning, "from"), to = (*one)["to"];
    if (!(from > 0 && to > from)) continue;
    (*one)["step"] = since;
    (*one)["from"] = from;
    (*one)["factor_per_step"] = std::exp(std::log(to / from) / static_cast<double>(last_step - since));
    one->erase("at_most");
  }
}

// The weights that still grew, of which a warning said so before anything else began to: that is where it began.
ordered_json weights_that_grew(const std::vector<const json*>& warnings, std::uint64_t last_step,
                               const ordered_json* other) {
  const json* last = nullptr;
  for (const json* warning : warnings)
    if (quantity_of(*warning) == "weight") last = warning;
  if (last == nullptr || !lasts_until(*last, last_step)) return nullptr;
  const json& first = **std::ranges::find_if(warnings, [&](const json* warning) {
    return quantity_of(*warning) == "weight" && (*warning)["name"] == (*last)["name"];
  });
  if (other != nullptr && (first["step"] > (*other)["step"] || first["since"] >= (*other)["step"])) return nullptr;
  return {{"quantity", "weight"},
          {"name", first["name"]},
          {"step", first["since"]},
          {"from", evidence(first, "from")},
          {"to", evidence(*last, "to")},
          {"at", (*last)["step"]},
          {"factor_per_step", evidence(*last, "factor_per_step")}};
}

}  // namespace

ordered_json onsets_of(const std::vector<AppliedStep>& steps) {
  ordered_json found = ordered_json::array();
  for (const bool of_loss : {true, false}) {
    std::vector<double> values;
    for (const AppliedStep& one : steps) values.push_back(of_loss ? one.loss : one.gradient);
    const auto growth = signal::growth_to_end(values);
    if (!growth) continue;
    const std::size_t count = steps.size() - 1 - growth->at;
    const double to = std::fabs(values.back());
    // Of the two values that are named with it, where they say one.
    const bool is_known = count > 0 && growth->from > 0 && to > growth->from;
    const double factor = is_known ? std::pow(to / growth->from, 1.0 / static_cast<double>(count)) : growth->factor;
    ordered_json one = {{"quantity", of_loss ? "loss" : "gradient"},
                        {"step", steps[growth->at].step},
                        {"steps", count},
                        {"from", growth->from},
                        {"to", to},
                        {"factor_per_step", factor}};
    if (growth->is_older && steps[growth->at].step > 0) one["at_most"] = true;
    found.push_back(std::move(one));
  }
  if (const auto jump = jump_of_rate(steps))
    found.push_back({{"quantity", "learning-rate"},
                     {"step", steps[jump->at - 1].step},
                     {"steps", steps.size() - jump->at},
                     {"from", jump->before},
                     {"to", jump->after},
                     {"factor_per_step", jump->after / jump->before}});
  return found;
}

bool is_of_scale(const std::string& cause, const ordered_json& onsets) {
  return cause == "loss-scale-misuse" && !onsets.empty() &&
         std::ranges::all_of(onsets, [](const ordered_json& one) { return one["quantity"] == "loss"; });
}

ordered_json onset_of(const std::vector<AppliedStep>& steps, const json& warnings, const std::string& optimizer) {
  if (steps.empty()) return nullptr;
  ordered_json found = onsets_of(steps);
  std::vector<const json*> of_this;
  for (const json& warning : warnings)
    if (warning["what"] == "growth" && warning["optimizer"] == optimizer) of_this.push_back(&warning);
  for (ordered_json& one : found) take_from_warnings(of_this, steps.back().step, &one);
  add_from_warnings(of_this, steps.back(), &found);
  const ordered_json* first = nullptr;  // of what grew, the one that began to first
  for (const ordered_json& one : found) {
    if (!is_growth(one)) continue;
    if (first == nullptr || one["step"] < (*first)["step"]) first = &one;
  }
  const ordered_json weights = weights_that_grew(of_this, steps.back().step, first);
  if (weights.is_null() && found.empty()) return nullptr;
  if (first == nullptr && !found.empty()) first = &found[0];
  const ordered_json& onset = weights.is_null() ? *first : weights;
  std::string name, text;
  if (!weights.is_null()) text = in_words(weights);
  for (const ordered_json& one : found) text += (text.empty() ? "" : "; ") + in_words(one);
  if (!weights.is_null()) {
    name = weights["name"];
  } else {
    const auto nearest =
        std::ranges::find_if(of_this, [&](const json* one) { return (*one)["step"] >= onset["step"]; });
    if (nearest != of_this.end() && !is_of_loss_or_gradient(**nearest)) name = (**nearest)["name"];
    if (!name.empty()) text += "; most in " + name;
  }
  return {{"step", onset["step"]},
          {"name", name.empty() ? onset["quantity"] : ordered_json(name)},
          {"rate", onset["factor_per_step"]},
          {"lr", rate_at(steps, onset["step"])},
          {"text", text}};
}

}  // namespace finitude::incident
