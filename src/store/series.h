// One quantity over the steps of a training in a bounded number of points: down-sampled so that first, last, min and
// max of every stretch are kept. Plain data; no thread, no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace finitude::store {

inline constexpr std::size_t kMostPoints = 2048;  // of a series

// The finite values of steps `step` to `last_step`; NaN in all four where there was none.
struct Point {
  std::uint64_t step = 0, last_step = 0;
  double time = 0;  // Unix seconds, of last_step
  double first = std::numeric_limits<double>::quiet_NaN(), last = first, min = first, max = first;

  void add(std::uint64_t at_step, double at_time, double value) noexcept;
  // `next` begins after this one ends.
  void append(const Point& next) noexcept;
  bool operator==(const Point&) const = default;
};

// How much a point covers at least. Each of the first steps has one of its own, until points are merged: a short run
// has a curve too.
struct Interval {
  std::uint64_t steps = 1;
  double seconds = 0;
  std::uint64_t first_steps = 0;
};

// The point that is growing, and how coarse points have become. The points that are whole are kept by who takes them.
class Series {
 public:
  explicit Series(Interval interval) : interval_(interval) {}

  // Steps come in order; one that does not is dropped. True: a point is whole now, and lies in *whole.
  bool add(std::uint64_t step, double time, double value, Point* whole) noexcept;
  // The same with several values of one step: one.step is one.last_step.
  bool add(const Point& one, Point* whole) noexcept;
  bool is_empty() const noexcept { return !is_open_; }
  const Point& open() const noexcept { return open_; }  // not is_empty()
  // Points were merged in pairs: later ones cover twice as much.
  void coarsen() noexcept;

 private:
  Interval interval_;
  Point open_;
  double began_ = 0;
  bool is_open_ = false;
};

// Neighbours become one point; an odd one at the end stays.
std::vector<Point> merged_in_pairs(const std::vector<Point>& points);

}  // namespace finitude::store
