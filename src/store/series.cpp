#include "store/series.h"

#include <algorithm>
#include <cmath>

namespace finitude::store {

void Point::add(std::uint64_t at_step, double at_time, double value) noexcept {
  last_step = at_step;
  time = at_time;
  if (!std::isfinite(value)) return;
  if (std::isnan(first)) {
    first = last = min = max = value;
    return;
  }
  last = value;
  min = std::min(min, value);
  max = std::max(max, value);
}

void Point::append(const Point& next) noexcept {
  last_step = next.last_step;
  time = next.time;
  if (std::isnan(next.first)) return;
  if (std::isnan(first)) {
    first = next.first;
    min = next.min;
    max = next.max;
  } else {
    min = std::min(min, next.min);
    max = std::max(max, next.max);
  }
  last = next.last;
}

bool Series::add(std::uint64_t step, double time, double value, Point* whole) noexcept {
  Point one;
  one.step = step;
  one.add(step, time, value);
  return add(one, whole);
}

bool Series::add(const Point& one, Point* whole) noexcept {
  bool is_whole = false;
  if (is_open_) {
    if (one.step <= open_.last_step) return false;
    is_whole = open_.step < interval_.first_steps ||
               (one.step - open_.step >= interval_.steps && one.time - began_ >= interval_.seconds);
    if (is_whole) *whole = open_;
  }
  if (is_whole || !is_open_) {
    open_ = Point();
    open_.step = one.step;
    began_ = one.time;
    is_open_ = true;
  }
  open_.append(one);
  return is_whole;
}

void Series::coarsen() noexcept { interval_ = {2 * interval_.steps, 2 * interval_.seconds}; }

std::vector<Point> merged_in_pairs(const std::vector<Point>& points) {
  std::vector<Point> merged;
  merged.reserve((points.size() + 1) / 2);
  for (std::size_t i = 0; i < points.size(); i += 2) {
    merged.push_back(points[i]);
    if (i + 1 < points.size()) merged.back().append(points[i + 1]);
  }
  return merged;
}

}  // namespace finitude::store
