// How many steps are left of a growth until values overflow, if it continues: an interval, or nothing where the growth
// is too unsteady for one that says something.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace finitude::signal {

struct Rates {  // per step, of the logarithm
  double slowest = 0, likely = 0, fastest = 0;
};

// The rates of a rise, from how much they differ between its parts: the median of the parts' rates, with twice its
// error; the last part's rate is inside, so that a rise that speeds up or slows down has a wide interval. values: one
// for each step, at least 4. None: it does not rise.
std::optional<Rates> rates_of(std::span<const double> values) noexcept;

// Steps until the logarithm has grown by `least` at the earliest, by `most` at the latest. None: not in 100,000 steps,
// or the latest is more than ten times the earliest.
std::optional<std::array<std::uint64_t, 2>> horizon_between(double least, double most, const Rates& rates) noexcept;

// Steps from a quantity whose logarithm is `log_value`: at the earliest until its square overflows `limit`, since
// squares of it overflow there; at the latest until it does itself.
std::optional<std::array<std::uint64_t, 2>> horizon_of(double log_value, const Rates& rates, double limit) noexcept;

}  // namespace finitude::signal
