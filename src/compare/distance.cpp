#include "compare/distance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "record/reported_range.h"

namespace finitude::compare {
namespace {

constexpr std::size_t kRows = 8;

class Measure {
 public:
  Measure(Number number, Distance* out) : number_(number), out_(*out) {}

  // False: the two are equal.
  bool pair(double a, double b, std::int64_t index) {
    ++out_.elements;
    if (std::isnan(a) || std::isnan(b)) {
      ++out_.differing;
      if (std::isnan(a) && std::isnan(b)) {
        ++out_.nan_in_both;
        return true;
      }
      ++out_.nan_in_one;
      worst(3, 0, a, b, index);
      return true;
    }
    if (!std::isinf(a)) out_.scale = std::max(out_.scale, std::fabs(a));
    if (!std::isinf(b)) out_.scale = std::max(out_.scale, std::fabs(b));
    if (a == b) return false;
    if (std::isinf(a) || std::isinf(b)) {
      ++out_.differing;
      ++out_.infinite;
      worst(2, 0, a, b, index);
      return true;
    }
    const std::uint64_t steps = is_float(number_) ? ulps(a, b, number_) : 0;
    // In the coarser format the two may be one number.
    if (is_float(number_) && steps == 0) return false;
    ++out_.differing;
    const double gap = std::fabs(a - b);
    out_.max_ulps = std::max(out_.max_ulps, steps);
    out_.max_abs = std::max(out_.max_abs, gap);
    out_.max_rel = std::max(out_.max_rel, gap / std::max(std::fabs(a), std::fabs(b)));
    worst(1, gap, a, b, index);
    return true;
  }

 private:
  void worst(int kind, double gap, double a, double b, std::int64_t index) {
    if (kind < kind_ || (kind == kind_ && gap <= gap_)) return;
    kind_ = kind;
    gap_ = gap;
    out_.worst = index;
    out_.a = a;
    out_.b = b;
  }

  Number number_;
  Distance& out_;
  int kind_ = 0;
  double gap_ = -1;
};

}  // namespace

Distance distance(const char* a, Number of_a, const char* b, Number of_b, std::uint64_t reals, std::uint64_t row) {
  Distance out;
  out.number = coarser(of_a, of_b);
  if (of_a == Number::kOther || of_b == Number::kOther) {
    return out;
  }
  out.known = out.exact = true;
  Measure measure(out.number, &out);
  const std::size_t bytes = of_a == of_b ? info(of_a).size_bytes : 0;
  bool same_bits = bytes != 0;
  for (std::uint64_t i = 0; i < reals; ++i) {
    same_bits = same_bits && std::memcmp(a + i * bytes, b + i * bytes, bytes) == 0;
    bool differs = measure.pair(decode(a, of_a, i), decode(b, of_b, i), static_cast<std::int64_t>(i));
    // A double cannot say all integers of 64 bits apart.
    if (!differs && bytes == 8 && !is_float(of_a) && std::memcmp(a + i * 8, b + i * 8, 8) != 0) {
      differs = true;
      ++out.differing;
      out.max_abs = std::max(out.max_abs, 1.0);
    }
    if (!differs || row == 0) continue;
    const auto at = static_cast<std::int64_t>(i / row);
    if (out.rows.size() < kRows && (out.rows.empty() || out.rows.back() != at)) out.rows.push_back(at);
  }
  out.same_bits = same_bits;
  return out;
}

Distance distance(const sense::Health& a, Number of_a, const sense::Health& b, Number of_b) {
  Distance out;
  out.number = coarser(of_a, of_b);
  if (a.numel == 0 || a.numel != b.numel || !is_float(of_a) || !is_float(of_b)) return out;
  out.known = true;
  out.elements = a.numel;
  const auto apart = [](std::uint64_t x, std::uint64_t y) { return x > y ? x - y : y - x; };
  out.nan_in_one = apart(a.nan, b.nan);
  out.nan_in_both = std::min(a.nan, b.nan);
  out.infinite = apart(a.pos_inf, b.pos_inf) + apart(a.neg_inf, b.neg_inf);
  out.scale = std::max(a.absmax, b.absmax);
  Distance values;
  Measure measure(out.number, &values);
  const bool ranged = record::has_range(a) && record::has_range(b);
  if (a.finite() != 0 && b.finite() != 0 && ranged) {
    measure.pair(a.min, b.min, -1);
    measure.pair(a.max, b.max, -1);
    if (a.sum_sq > 0 && b.sum_sq > 0)
      measure.pair(std::sqrt(a.sum_sq / static_cast<double>(a.finite())),
                   std::sqrt(b.sum_sq / static_cast<double>(b.finite())), -1);
  }
  out.max_ulps = values.max_ulps;
  out.max_abs = values.max_abs;
  out.max_rel = values.max_rel;
  out.a = values.a;
  out.b = values.b;
  out.differing = std::max<std::uint64_t>(
      {out.nan_in_one + out.nan_in_both + out.infinite, values.differing, apart(a.zero, b.zero)});
  out.known = ranged || out.differing != 0;  // as many values of each kind says nothing of the values
  return out;
}

}  // namespace finitude::compare
