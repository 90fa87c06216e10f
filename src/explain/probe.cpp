// See probe.h.
#include "explain/probe.h"

#include <algorithm>
#include <utility>

#include "locate/flows_on.h"
#include "record/bad_rows.h"

namespace finitude::explain {

namespace {

bool all_finite(const Trial& trial) {
  return std::all_of(trial.outputs.begin(), trial.outputs.end(),
                     [](const sense::Health& health) { return health.ok(); });
}

std::string outcome_of(const Trial& trial, bool expect_finite) {
  if (all_finite(trial)) return "finite";
  std::uint64_t nan = 0, pos = 0, neg = 0;
  for (const auto& health : trial.outputs) nan += health.nan, pos += health.pos_inf, neg += health.neg_inf;
  const std::string what = nan ? "NaN" : neg > pos ? "-Inf" : "Inf";
  return (expect_finite ? "not finite: " : "still ") + what;
}

// What is judged are results that are used, not notes that the operator keeps for its backward: a kernel may not have
// written all of them.
void keep_results(const record::Trace& trace, record::OpId op, Trial* trial) {
  if (trial->outputs.size() != trace.ops[op].outputs.size()) return;
  std::vector<sense::Health> kept;
  for (std::size_t i = 0; i < trial->outputs.size(); ++i)
    if (locate::flows_on(trace, op, i)) kept.push_back(trial->outputs[i]);
  trial->outputs = std::move(kept);
}

}  // namespace

Probe::Probe(const Scene& scene, record::OpId op) : scene_(scene), op_(op) {}

bool Probe::record(std::string name, const Variant& variant, bool expect_finite, bool infinities_meant) {
  Lab* lab = scene_.evidence.lab;
  if (!lab || op_ >= scene_.trace.ops.size() || !scene_.trace.ops[op_].captured) return false;
  Trial trial = lab->run(op_, variant);
  if (!trial.ran) return false;
  keep_results(scene_.trace, op_, &trial);
  bool any_left = false;
  for (auto& health : trial.outputs) {
    if (!infinities_meant) break;
    any_left |= health.inf() != 0;
    health.pos_inf = health.neg_inf = 0;
  }
  const bool confirms = all_finite(trial) == expect_finite;
  std::string outcome = any_left && all_finite(trial) ? "no NaN" : outcome_of(trial, expect_finite);
  experiments_.push_back({std::move(name), std::move(outcome), confirms});
  return confirms;
}

bool Probe::finite_if(std::string name, const Variant& variant) { return record(std::move(name), variant, true); }
bool Probe::still_bad(std::string name, const Variant& variant) { return record(std::move(name), variant, false); }

void Probe::clamped(std::string_view arg, double min) {
  Variant variant;
  variant.clamp_arg = arg;
  variant.clamp_min = min;
  finite_if(std::string(arg) + " clamped at " + figure(min), variant);
}

void Probe::zeros_replaced(std::string_view arg) {
  Variant variant;
  variant.replace_arg = arg;
  variant.replace_from = 0;
  variant.replace_to = 1;
  finite_if("zeros of " + std::string(arg) + " replaced by 1", variant);
}

void Probe::in_float64(bool helps) {
  Variant variant;
  variant.compute_dtype = sense::DType::kFloat64;
  const std::string name = op_ < scene_.trace.ops.size() ? plain_name(scene_.trace.ops[op_].name) : std::string();
  record(name + " in float64", variant, helps);
}

void Probe::without_rows() {
  const auto& rows = scene_.birth.rows;
  if (rows.empty() || scene_.birth.rows_of != 0 || op_ != scene_.birth.op || op_ >= scene_.trace.ops.size()) return;
  const auto* bad = bad_output(scene_.trace.ops[op_]);
  if (!bad || bad->shape.empty() || rows.size() >= static_cast<std::size_t>(std::max<std::int64_t>(bad->shape[0], 0)))
    return;
  // The list may continue: rows that stay in would speak against the cause.
  const auto* read = bad_input(scene_.trace.ops[op_]);
  if (rows.size() >= (read && read->health.nan != 0 ? record::kMaxBadRows : record::kMostBadRows)) return;
  Variant variant;
  variant.drop_rows = rows;
  variant.rows = bad->shape[0];
  const auto& inputs = scene_.trace.ops[op_].inputs;
  const bool masked = std::any_of(inputs.begin(), inputs.end(), [](const auto& use) { return use.health.inf() != 0; });
  record(at_rows(scene_.birth).substr(4) + " removed", variant, true, masked && bad->health.nan != 0);
}

void Probe::again() {
  Variant variant;
  variant.again = true;
  still_bad("again as it was", variant);
}

void Probe::conclude(Finding& finding, bool unambiguous) const {
  finding.experiments.insert(finding.experiments.end(), experiments_.begin(), experiments_.end());
  const auto& all = finding.experiments;
  const auto against = std::count_if(all.begin(), all.end(), [](const Experiment& e) { return !e.confirms; });
  finding.score -= static_cast<int>(against) * kContradiction;
  if (against > 0)
    finding.confidence = "possible";
  else if (all.size() >= 2)
    finding.confidence = "proven";
  else
    finding.confidence = !all.empty() || unambiguous ? "likely" : "possible";
}

void conclude(Finding& finding, bool unambiguous) { finding.confidence = unambiguous ? "likely" : "possible"; }

}  // namespace finitude::explain
