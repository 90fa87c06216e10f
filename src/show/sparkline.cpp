#include "show/sparkline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>

#include "show/printable.h"

namespace finitude::show {
namespace {

constexpr std::string_view kBlocks[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
constexpr std::string_view kAscii[] = {".", ":", "-", "=", "+", "*", "#", "@"};
constexpr std::size_t kLevels = std::size(kBlocks);
static_assert(std::size(kAscii) == kLevels);
constexpr int kLabel = 21, kNumber = 11, kLeastColumns = 8, kMostColumns = 60, kNoWidth = 100;
constexpr std::size_t kMostOptimizersShown = 4;
constexpr double kLogFactor = 100;

// What is drawn of it; NaN: nothing.
double height(double value, bool is_log) {
  if (!std::isfinite(value) || (is_log && !(value > 0))) return std::numeric_limits<double>::quiet_NaN();
  return is_log ? std::log10(value) : value;
}

std::string padded(std::string text, int width, bool is_right) {
  const int missing = std::max(0, width - columns(text));
  text.insert(is_right ? 0 : text.size(), static_cast<std::size_t>(missing), ' ');
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// With the blanks before it; as many numbers as fit.
bool has_numbers(int width) { return width >= kLabel + kLeastColumns + 4 * kNumber; }

std::string row(const std::string& label, const std::string& chart, const std::vector<std::string>& numbers,
                int width) {
  const int room = static_cast<int>(sparkline_columns(width));
  std::string line = padded(cut(label, kLabel - 1), kLabel, false) + padded(chart, room, false);
  if (has_numbers(width)) {
    for (const std::string& one : numbers) line += padded(one, kNumber, true);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

const store::Course* found(const std::vector<store::Course>& courses, std::string_view optimizer,
                           std::string_view quantity) {
  for (const store::Course& one : courses) {
    if (one.optimizer == optimizer && one.quantity == quantity) return &one;
  }
  return nullptr;
}

std::string course_row(const store::Course& course, const std::string& label, const TerminalOptions& options) {
  const bool is_log = course.min > 0 && course.max > kLogFactor * course.min;
  return row(label + (is_log ? " (log)" : ""), sparkline(course.parts, is_log, options.unicode),
             {number(course.first), number(course.last), number(course.min), number(course.max)}, options.width);
}

}  // namespace

std::string sparkline(std::span<const double> values, bool is_log, bool unicode) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    const double at = height(value, is_log);
    if (std::isnan(at)) continue;
    low = std::min(low, at);
    high = std::max(high, at);
  }
  std::string line;
  for (const double value : values) {
    const double at = height(value, is_log);
    // Halves, because the difference of two finite numbers may be Inf.
    const double share = high > low ? (at / 2 - low / 2) / (high / 2 - low / 2) : 0;
    if (std::isnan(at)) {
      line += ' ';
    } else {
      const auto level = std::min(kLevels - 1, static_cast<std::size_t>(share * kLevels));
      line += unicode ? kBlocks[level] : kAscii[level];
    }
  }
  return line;
}

std::size_t sparkline_columns(int width) {
  const int whole = width > 0 ? width : kNoWidth;
  const int room = whole - kLabel - (has_numbers(whole) ? 4 * kNumber : 0);
  return static_cast<std::size_t>(std::clamp(room, kLeastColumns, kMostColumns));
}

std::string course_table(const std::vector<store::Course>& courses, const TerminalOptions& options) {
  TerminalOptions within = options;
  if (within.width <= 0) within.width = kNoWidth;
  std::vector<std::string> optimizers;  // in the order in which they began
  for (const store::Course& one : courses) {
    if (std::find(optimizers.begin(), optimizers.end(), one.optimizer) == optimizers.end())
      optimizers.push_back(one.optimizer);
  }
  std::string table;
  for (const std::string& optimizer : optimizers) {
    const store::Course* const norm = found(courses, optimizer, "gradient_norm");
    // A program that does not clip has no norm.
    const std::pair<const store::Course*, const char*> shown[] = {
        {found(courses, optimizer, "loss"), "loss"},
        {norm != nullptr ? norm : found(courses, optimizer, "gradient_absmax"),
         norm != nullptr ? "grad norm" : "largest grad"},
        {found(courses, optimizer, "learning_rate"), "learning rate"}};
    std::string rows;
    std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
    for (const auto& [course, label] : shown) {
      if (course == nullptr) continue;
      rows += course_row(*course, label, within);
      first = std::min(first, course->first_step);
      last = std::max(last, course->last_step);
    }
    if (rows.empty()) continue;
    const std::string steps = "steps " + std::to_string(first) + " to " + std::to_string(last);
    const std::string name = optimizers.size() > 1 ? printable(optimizer, within.unicode) : "";
    table += row(name.empty() ? steps : name,
                 name.empty() ? "" : cut(steps, static_cast<int>(sparkline_columns(within.width))),
                 {"first", "last", "min", "max"}, within.width) +
             rows;
    if (&optimizer - optimizers.data() + 1 == static_cast<std::ptrdiff_t>(kMostOptimizersShown)) break;
  }
  return table;
}

}  // namespace finitude::show
