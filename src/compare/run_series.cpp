#include "compare/run_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace finitude::compare {
namespace {

// Relative, of a sum over many values in float32: what reordering leaves of it. Half formats are added up in float32.
constexpr double kOfSeries = 1e-5;
// Ranges are taken of so many equal parts of the steps of both. One part alone may be chance.
constexpr std::uint64_t kParts = 16, kFewestPartsApart = 3;
constexpr std::size_t kMostFates = 1000;

using Name = std::tuple<std::string, std::string, std::string>;  // parameter, optimizer, quantity
using Place = std::pair<std::uint64_t, std::string>;             // step, optimizer
using Values = std::map<std::uint64_t, double>;                  // by step

// The values that a store has exactly: the first and the last of each point.
Values exact_values(const store::PointSeries& series) {
  Values values;
  for (const store::Point& point : series.points) {
    values.emplace(point.step, point.first);
    values.emplace(point.last_step, point.last);
  }
  return values;
}

// By its number in steps.ring; empty where there are several: their numbers rise in the order of their first steps,
// their series in that of the first steps that were applied.
std::map<std::uint32_t, std::string> optimizers_of(const Course& course) {
  std::map<std::uint32_t, std::string> names;
  for (const record::StepRecord& step : course.recent) names[step.optimizer];
  std::size_t count = 0;
  for (const store::PointSeries& one : course.series) {
    if (one.quantity != "learning_rate" || !one.parameter.empty()) continue;
    ++count;
    if (!names.empty()) names.begin()->second = one.optimizer;
  }
  return count == 1 && names.size() == 1 ? names : std::map<std::uint32_t, std::string>();
}

// No gradients: of clipped ones a record has a bound of the largest.
std::map<Name, Values> values_of_ring(const Course& course) {
  std::map<Name, Values> values;
  const auto names = optimizers_of(course);
  for (const record::StepRecord& step : course.recent) {
    const auto name = names.find(step.optimizer);
    if (name == names.end()) continue;
    const std::string& optimizer = name->second;
    values[{"", optimizer, "loss"}][step.step] = step.loss;
    values[{"", optimizer, "learning_rate"}][step.step] = step.lr;
  }
  return values;
}

bool is_same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

double relative_of(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return 1;
  const double larger = std::max(std::fabs(a), std::fabs(b));
  return larger > 0 ? std::fabs(a - b) / larger : 0;
}

struct Range {
  double min = std::numeric_limits<double>::infinity(), max = -min;
  void add(double low, double high) {
    min = std::min(min, low);
    max = std::max(max, high);
  }
};

std::vector<Range> ranges_of(const store::PointSeries& series, std::uint64_t steps) {
  std::vector<Range> ranges(kParts);
  for (const store::Point& point : series.points) {
    if (std::isnan(point.min) || point.step >= steps) continue;
    const std::uint64_t last = std::min(point.last_step, steps - 1);
    for (std::uint64_t part = point.step * kParts / steps; part <= last * kParts / steps; ++part)
      ranges[part].add(point.min, point.max);
  }
  return ranges;
}

// 1: all of a is far above all of b; -1: below; 0: neither, or one has no values, or negative ones.
int side_of(const Range& a, const Range& b) {
  if (a.min > a.max || b.min > b.max || a.min < 0 || b.min < 0) return 0;
  return a.min > kFactorApart * b.max ? 1 : b.min > kFactorApart * a.max ? -1 : 0;
}

// Back from the end: for how long is one of them far above the other?
void find_apart(const store::PointSeries& a, const store::PointSeries& b, SeriesDifference* out) {
  if (a.points.empty() || b.points.empty()) return;
  const std::uint64_t steps = std::min(a.points.back().last_step, b.points.back().last_step) + 1;
  if (steps < kParts || steps > std::numeric_limits<std::uint64_t>::max() / kParts) return;
  const std::vector<Range> of_a = ranges_of(a, steps), of_b = ranges_of(b, steps);
  const int side = side_of(of_a.back(), of_b.back());
  std::uint64_t since = kParts;
  Range whole_a, whole_b;
  for (; side != 0 && since > 0 && side_of(of_a[since - 1], of_b[since - 1]) == side; --since) {
    whole_a.add(of_a[since - 1].min, of_a[since - 1].max);
    whole_b.add(of_b[since - 1].min, of_b[since - 1].max);
  }
  if (kParts - since < kFewestPartsApart) return;
  out->is_apart = true;
  out->apart_since = (since * steps + kParts - 1) / kParts;
  out->min_a = whole_a.min;
  out->max_a = whole_a.max;
  out->min_b = whole_b.min;
  out->max_b = whole_b.max;
}

bool is_set(const std::string& quantity) { return quantity.starts_with("learning_rate") || quantity == "loss_scale"; }

SeriesDifference compare_values(const Name& name, const std::map<std::uint64_t, std::pair<double, double>>& values) {
  SeriesDifference out;
  std::tie(out.parameter, out.optimizer, out.quantity) = name;
  std::optional<std::uint64_t> before;
  for (const auto& [step, both] : values) {
    const auto [a, b] = both;
    const double relative = relative_of(a, b);
    ++out.steps;
    if (is_same(a, b)) {
      if (out.level == Level::kSame) {
        out.last_same = step;
        out.has_same = true;
      }
    } else if (out.level == Level::kSame) {
      out.level = is_set(out.quantity) || relative > kOfSeries ? Level::kDiffers : Level::kNoise;
      out.first_step = step;
      out.unknown = before ? step - *before - 1 : step;
      out.a = a;
      out.b = b;
      out.relative = relative;
    }
    if (!is_same(a, b) && relative > out.largest) {
      out.largest = relative;
      out.largest_step = step;
    }
    before = step;
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

std::string fate_by_flags(std::uint32_t flags) {
  if (flags & record::kStepScalerSkip) return "skipped by the GradScaler";
  return flags & record::kStepApplied ? "" : "not applied";
}

// Of the steps from `since` on also what their records say.
std::map<Place, std::string> fates_of(const Course& course, std::uint64_t since) {
  std::map<Place, std::string> fates;
  const auto names = optimizers_of(course);
  for (const record::StepRecord& step : course.recent) {
    const auto name = names.find(step.optimizer);
    const std::string what = fate_by_flags(step.flags);
    if (step.step >= since && name != names.end() && !what.empty()) fates[{step.step, name->second}] = what;
  }
  for (const BadStep& bad : course.alarms) {
    std::string& fate = fates[{bad.step, bad.optimizer}];
    fate += (fate.empty() ? "" : ": ") + bad.text;
  }
  return fates;
}

std::map<std::string, std::uint64_t> last_steps(const Course& course) {
  std::map<std::string, std::uint64_t> last;
  for (const store::PointSeries& one : course.series) {
    if (one.parameter.empty() && one.quantity == "learning_rate" && !one.points.empty())
      last[one.optimizer] = one.points.back().last_step;
  }
  const auto names = optimizers_of(course);
  for (const record::StepRecord& step : course.recent) {
    const auto name = names.find(step.optimizer);
    if (name == names.end()) continue;
    std::uint64_t& known = last[name->second];
    known = std::max(known, step.step);
  }
  return last;
}

void compare_fates(const Course& a, const Course& b, CourseJudgement* out) {
  const auto last_a = last_steps(a), last_b = last_steps(b);
  for (const auto& [optimizer, step] : last_a) {
    const auto other = last_b.find(optimizer);
    if (other != last_b.end() && other->second != step) out->ends.push_back({optimizer, step, other->second});
  }
  const auto reaches = [](const auto& last, const Place& place) {
    const auto found = last.find(place.second);
    return found != last.end() && place.first <= found->second;
  };
  std::uint64_t since = std::numeric_limits<std::uint64_t>::max();
  if (!optimizers_of(a).empty() && !optimizers_of(b).empty())
    since = std::max(a.recent.front().step, b.recent.front().step);
  const auto of_a = fates_of(a, since), of_b = fates_of(b, since);
  std::map<Place, std::pair<std::string, std::string>> both;
  for (const auto& [place, what] : of_a) both[place].first = what;
  for (const auto& [place, what] : of_b) both[place].second = what;
  for (const auto& [place, what] : both) {
    if (what.first == what.second || !reaches(last_a, place) || !reaches(last_b, place)) continue;
    if (out->fates.size() < kMostFates) out->fates.push_back({place.first, place.second, what.first, what.second});
  }
}

bool is_of_step(const SeriesDifference& one) {
  return one.parameter.empty() && (one.quantity == "loss" || one.quantity.starts_with("gradient_"));
}

// Does what is different in the first step say no more than that other numbers came in?
bool differs_from_start(const SeriesDifference& one) {
  return is_of_step(one) && !one.has_same && one.level == Level::kDiffers && std::isfinite(one.a) &&
         std::isfinite(one.b);
}

// Of an optimizer whose loss or gradients differ.
struct FirstDifference {
  std::uint64_t step = 0;
  bool is_start = true;
};

void find_step(CourseJudgement* out) {
  std::optional<std::uint64_t> first, start;
  const auto take = [&first](std::uint64_t step) { first = std::min(first.value_or(step), step); };
  std::map<std::string, FirstDifference> begins;
  for (const SeriesDifference& one : out->differing) {  // by step
    if (!is_of_step(one) || one.level != Level::kDiffers) continue;
    FirstDifference& begin = begins.try_emplace(one.optimizer, FirstDifference{one.first_step}).first->second;
    if (one.first_step == begin.step) begin.is_start = begin.is_start && differs_from_start(one);
  }
  bool has_later = false;
  for (const auto& [optimizer, begin] : begins) {
    if (begin.is_start) start = std::min(start.value_or(begin.step), begin.step);
    has_later = has_later || !begin.is_start;
  }
  out->differs_from_start = start && !has_later;
  for (const SeriesDifference& one : out->differing) {
    const auto begin = begins.find(one.optimizer);
    const bool is_later = begin != begins.end() && !begin->second.is_start;
    if (one.is_apart && one.quantity == "loss" && !is_later) take(one.apart_since);
    if (one.level == Level::kDiffers && (!start || is_later || is_set(one.quantity))) take(one.first_step);
  }
  if (out->has_other_data && !out->differs_from_start) take(out->data_step);
  if (!out->fates.empty()) take(out->fates.front().step);
  for (const OtherEnd& one : out->ends) take(std::min(one.a, one.b) + 1);
  if (!first) first = start;
  out->diverges = first.has_value();
  out->step = first.value_or(0);
}

}  // namespace

CourseJudgement judge_courses(const Course& a, const Course& b) {
  CourseJudgement out;
  std::map<Name, const store::PointSeries*> in_b;
  const auto ring_a = values_of_ring(a), ring_b = values_of_ring(b);
  for (const store::PointSeries& one : b.series) in_b[{one.parameter, one.optimizer, one.quantity}] = &one;
  for (const store::PointSeries& one : a.series) {
    if (one.quantity == "step_seconds") continue;
    const Name name{one.parameter, one.optimizer, one.quantity};
    const auto other = in_b.find(name);
    if (other == in_b.end()) {
      ++out.only_a;
      continue;
    }
    std::map<std::uint64_t, std::pair<double, double>> values;
    const auto take = [&values](const Values& of_a, const Values& of_b) {
      for (const auto& [step, value] : of_a) {
        if (const auto found = of_b.find(step); found != of_b.end()) values[step] = {value, found->second};
      }
    };
    take(exact_values(one), exact_values(*other->second));
    if (ring_a.contains(name) && ring_b.contains(name)) take(ring_a.at(name), ring_b.at(name));
    SeriesDifference found = compare_values(name, values);
    if (differs_from_start(found)) find_apart(one, *other->second, &found);
    in_b.erase(other);
    ++out.compared;
    if (found.level != Level::kSame) out.differing.push_back(std::move(found));
  }
  for (const auto& [name, one] : in_b) out.only_b += one->quantity != "step_seconds";
  std::stable_sort(out.differing.begin(), out.differing.end(), [](const auto& x, const auto& y) {
    return std::tuple(x.first_step, !x.parameter.empty()) < std::tuple(y.first_step, !y.parameter.empty());
  });
  compare_batches(a, b, &out);
  compare_fates(a, b, &out);
  find_step(&out);
  return out;
}

}  // namespace finitude::compare
