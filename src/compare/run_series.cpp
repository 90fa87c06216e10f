#include "compare/run_series.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace finitude::compare {
namespace {

// Relative, of a sum over many values in float32: what reordering leaves of it. Half formats are added up in float32.
constexpr double kOfSeries = 1e-5;

using Name = std::tuple<std::string, std::string, std::string>;  // parameter, optimizer, quantity

// The values that a store has exactly, by step: the first and the last of each point.
std::map<std::uint64_t, double> exact_values(const store::PointSeries& series) {
  std::map<std::uint64_t, double> values;
  for (const store::Point& point : series.points) {
    values.emplace(point.step, point.first);
    values.emplace(point.last_step, point.last);
  }
  return values;
}

bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double relative_of(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return 1;
  const double larger = std::max(std::fabs(a), std::fabs(b));
  return larger > 0 ? std::fabs(a - b) / larger : 0;
}

SeriesDifference compare_series(const store::PointSeries& a, const store::PointSeries& b) {
  SeriesDifference out;
  out.quantity = a.quantity;
  out.optimizer = a.optimizer;
  out.parameter = a.parameter;
  const bool is_set = a.quantity == "learning_rate" || a.quantity == "loss_scale";
  const auto of_a = exact_values(a), of_b = exact_values(b);
  for (const auto& [step, value] : of_a) {
    const auto other = of_b.find(step);
    if (other == of_b.end()) continue;
    ++out.steps;
    const double relative = relative_of(value, other->second);
    if (is_same(value, other->second)) {
      if (out.level == Level::kSame) {
        out.last_same = step;
        out.has_same = true;
      }
      continue;
    }
    if (out.level == Level::kSame) {
      out.level = is_set || relative > kOfSeries ? Level::kDiffers : Level::kNoise;
      out.first_step = step;
      out.a = value;
      out.b = other->second;
      out.relative = relative;
    }
    if (relative > out.largest) {
      out.largest = relative;
      out.largest_step = step;
    }
  }
  return out;
}

void compare_batches(const Course& a, const Course& b, CourseJudgement* out) {
  std::map<std::tuple<std::uint64_t, std::string, std::uint64_t>, const std::string*> of_a;
  for (const store::BatchContent& batch : a.batches)
    of_a[{batch.step, batch.optimizer, batch.micro_batch}] = &batch.ids;
  for (const store::BatchContent& batch : b.batches) {
    const auto found = of_a.find({batch.step, batch.optimizer, batch.micro_batch});
    if (found == of_a.end()) continue;
    ++out->batches;
    if (out->has_other_data || *found->second == batch.ids) continue;
    out->has_other_data = true;
    out->data_step = batch.step;
    out->data_micro_batch = batch.micro_batch;
  }
}

}  // namespace

CourseJudgement judge_courses(const Course& a, const Course& b) {
  CourseJudgement out;
  std::map<Name, const store::PointSeries*> in_b;
  for (const store::PointSeries& one : b.series) in_b[{one.parameter, one.optimizer, one.quantity}] = &one;
  for (const store::PointSeries& one : a.series) {
    if (one.quantity == "step_seconds") continue;
    const auto other = in_b.find({one.parameter, one.optimizer, one.quantity});
    if (other == in_b.end()) {
      ++out.only_a;
      continue;
    }
    SeriesDifference found = compare_series(one, *other->second);
    in_b.erase(other);
    ++out.compared;
    if (found.level != Level::kSame) out.differing.push_back(std::move(found));
  }
  for (const auto& [name, one] : in_b) out.only_b += one->quantity != "step_seconds";
  std::stable_sort(out.differing.begin(), out.differing.end(), [](const auto& x, const auto& y) {
    return std::tuple(x.first_step, !x.parameter.empty()) < std::tuple(y.first_step, !y.parameter.empty());
  });
  compare_batches(a, b, &out);
  for (const SeriesDifference& one : out.differing) {
    if (one.level != Level::kDiffers || (out.diverges && one.first_step >= out.step)) continue;
    out.diverges = true;
    out.step = one.first_step;
  }
  if (out.has_other_data && (!out.diverges || out.data_step <= out.step)) {
    out.diverges = true;
    out.step = out.data_step;
  }
  return out;
}

}  // namespace finitude::compare
