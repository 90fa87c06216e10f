// Reads the course of a run out of its store.sqlite, for who prints a summary of it. The file is anyone's and may be
// written at this moment: it is opened read-only, and rows, bytes and time have limits. docs/store.md has its schema.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "finitude/status.h"
#include "store/series.h"

namespace finitude::store {

inline constexpr std::size_t kMostCourses = 64;  // of a file

// A series of a whole optimizer. All values are finite but those of `parts`.
struct Course {
  std::string quantity, optimizer;  // raw text of the file, at most 1000 bytes each
  std::uint64_t first_step = 0, last_step = 0;
  double first = 0, last = 0, min = 0, max = 0;
  std::vector<double> parts;  // the largest value in each of so many equal parts of the steps; NaN where there is none
};

// Those with a value, in the order in which they began. parts: as many as Course::parts has at most, at least 1; fewer
// where there are fewer steps. What takes longer than the limit is a failure.
Status read_courses(const std::string& path, std::size_t parts, std::vector<Course>* courses,
                    std::chrono::milliseconds time_limit = std::chrono::seconds(2));

inline constexpr std::size_t kMostSeries = 4096, kMostPointsRead = 2'000'000;

// A series with its points, those without a value too; of an optimizer, or of one of its parameters.
struct PointSeries {
  std::string quantity, optimizer, parameter;  // parameter: empty: of the optimizer
  std::vector<Point> points;                   // by step; `time` is not read
};

// What a micro-batch was made of.
struct BatchContent {
  std::string optimizer;
  std::uint64_t step = 0, micro_batch = 0;
  std::string ids;  // bytes as in the file
};

// All series, those of optimizers first; at most kMostSeries of them and kMostPointsRead points.
Status read_points(const std::string& path, std::vector<PointSeries>* series, std::vector<BatchContent>* batches,
                   std::chrono::milliseconds time_limit = std::chrono::seconds(10));

}  // namespace finitude::store
