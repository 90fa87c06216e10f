// How many steps are left of a growth until values overflow, if it continues.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace finitude::signal {

struct Rates {  // per step, of the logarithm
  double slowest = 0, likely = 0, fastest = 0;
};

// Steps from a quantity whose logarithm is `log_value`: at the earliest until its square overflows `limit`, since
// squares of it overflow there; at the latest until it does itself. None: not in 100,000 steps.
std::optional<std::array<std::uint64_t, 2>> horizon_of(double log_value, const Rates& rates, double limit) noexcept;

}  // namespace finitude::signal
