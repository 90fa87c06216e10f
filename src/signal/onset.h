// Since which value a series has grown, up to its last one. One implementation for warnings while a program runs, for
// the report of a bad step, and for what the doctor reads of a run that is over.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace finitude::signal {

// The fit of a series by a level up to an onset and a straight line from there to the end.
struct Hinge {
  std::size_t at = 0;    // index of the last value of the level
  double level = 0;      // before the onset
  double rise = 0;       // of the line, per value
  double explained = 0;  // share of the variance, 0 to 1
};

// Puts what is around it in the place of each value that lies far outside of that, one or two in a row: a single spike
// would move the least squares of a whole series. A level that shifts, and growth however fast, stay as they are.
// room: as many values, overwritten.
void remove_spikes(std::span<double> values, std::span<double> room) noexcept;

// Least squares over every possible onset that leaves at least `least` values for the line. None for a series that is
// too short, or constant. Linear in the number of values; allocates nothing.
std::optional<Hinge> fit_hinge(std::span<const double> values, std::size_t least) noexcept;

inline constexpr double kMostAtOnce = 0.5;  // of a rise: more from one value to the next is a jump
// The most that the series rises from one value to the next.
double largest_step(std::span<const double> values) noexcept;

struct Growth {
  std::size_t at = 0;     // index of the last value before the growth
  double from = 0;        // the value there, or what is around it where that is a spike
  double factor = 1;      // per value
  bool is_older = false;  // it may have begun before the first value that is left
};

// The growth of the magnitudes in `values` that lasts until the end: at least tenfold, over at least three values, not
// by a single jump, and up to about the largest value. Only the values behind the last zero or non-finite one count, of
// these the last 4096; without spikes. None where there is none.
std::optional<Growth> growth_to_end(std::span<const double> values);

}  // namespace finitude::signal
