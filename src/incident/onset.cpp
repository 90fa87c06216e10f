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
  const std::string what = quantity == "loss" ? "the loss" : "the largest gradient";
  const std::string since =
      "since step " + step + (one.contains("at_most") ? " or earlier, which is as far back as steps are kept" : "");
  return what + " grew " + since + ", by a factor of " + digits(one["factor_per_step"], 3) + " a step, from " +
         digits(from, 4) + " to " + digits(to, 4);
}

// The learning rate of that step, or of the first one that is kept.
json rate_at(const std::vector<AppliedStep>& steps, std::uint64_t step) {
  const auto found = std::ranges::find_if(steps, [&](const AppliedStep& one) { return one.step >= step; });
  return found == steps.end() ? json() : show::number(found->rate);
}

bool is_of_loss_or_gradient(const json& warning) { return warning["name"] == "loss" || warning["name"] == "gradient"; }

bool is_growth(const ordered_json& one) { return one["quantity"] != "learning-rate"; }

// What was warned of while something else began to grow, and whose own end is too steep for a fit, grew as well.
void add_from_warnings(const std::vector<const json*>& warnings, const AppliedStep& last, ordered_json* found) {
  for (const json* warning : warnings) {
    const std::uint64_t since = (*warning)["since"], warned = (*warning)["step"];
    const auto is_same = [&](const ordered_json& one) { return one["quantity"] == (*warning)["name"]; };
    const auto began_within = [&](const ordered_json& one) {
      return is_growth(one) && since < one["step"] && one["step"] <= warned;
    };
    if (!is_of_loss_or_gradient(*warning) || std::ranges::any_of(*found, is_same) ||
        std::ranges::none_of(*found, began_within))
      continue;
    const double from = (*warning)["evidence"]["from"];
    const double to = std::fabs((*warning)["name"] == "loss" ? last.loss : last.gradient);
    if (!(from > 0 && to >= kWarnedGrowth * from && std::isfinite(to))) continue;
    found->push_back({{"quantity", (*warning)["name"]},
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
    if ((*warning)["name"] != (*one)["quantity"] || since >= begin || (*warning)["step"] < begin) continue;
    const double from = (*warning)["evidence"]["from"], to = (*one)["to"];
    if (!(from > 0 && to > from)) continue;
    (*one)["step"] = since;
    (*one)["from"] = from;
    (*one)["factor_per_step"] = std::exp(std::log(to / from) / static_cast<double>(last_step - since));
    one->erase("at_most");
  }
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

ordered_json onset_of(const std::vector<AppliedStep>& steps, const json& warnings, const std::string& optimizer) {
  ordered_json found = onsets_of(steps);
  std::vector<const json*> of_this;
  for (const json& warning : warnings)
    if (warning["what"] == "growth" && warning["optimizer"] == optimizer) of_this.push_back(&warning);
  for (ordered_json& one : found) take_from_warnings(of_this, steps.back().step, &one);
  if (!steps.empty()) add_from_warnings(of_this, steps.back(), &found);
  const ordered_json* first = nullptr;  // of what grew, the one that began to first
  for (const ordered_json& one : found) {
    if (!is_growth(one)) continue;
    if (first == nullptr || one["step"] < (*first)["step"]) first = &one;
  }
  if (first == nullptr && !of_this.empty() && !is_of_loss_or_gradient(*of_this.back())) {
    const json& last = *of_this.back();
    return {{"step", last["since"]},
            {"name", last["name"]},
            {"rate", last["evidence"]["factor_per_step"]},
            {"lr", rate_at(steps, last["since"])},
            {"text", last["text"]}};
  }
  if (found.empty()) return nullptr;
  if (first == nullptr) first = &found[0];
  std::string name, text;
  for (const json* warning : of_this)
    if ((*warning)["step"] >= (*first)["step"] && !is_of_loss_or_gradient(*warning)) name = (*warning)["name"];
  for (const ordered_json& one : found) text += (text.empty() ? "" : "; ") + in_words(one);
  if (!name.empty()) text += "; most in " + name;
  return {{"step", (*first)["step"]},
          {"name", name.empty() ? (*first)["quantity"] : ordered_json(name)},
          {"rate", (*first)["factor_per_step"]},
          {"lr", rate_at(steps, (*first)["step"])},
          {"text", text}};
}

}  // namespace finitude::incident
