// The course of quantities over a run as a table of small charts, for a terminal.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "show/show.h"
#include "store/courses_posix.h"

namespace finitude::show {

// One character for each value, from the lowest to the highest; a blank where it is not finite. is_log: by the
// logarithm; values that are not positive are blank then. unicode = false: ASCII.
std::string sparkline(std::span<const double> values, bool is_log, bool unicode);

// How many values a line of that width has room for.
std::size_t sparkline_columns(int width);

// Loss, norm of the gradients and learning rate of each optimizer (4 at most), a line each: chart, first and last
// value, smallest and largest. Ends in a newline; empty where there is none of these. A chart whose values differ by a
// factor of more than 100 is logarithmic and says so.
std::string course_table(const std::vector<store::Course>& courses, const TerminalOptions& options);

}  // namespace finitude::show
