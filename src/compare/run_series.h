// The courses of two runs, series by series: from which step on they differ, and whether rounding explains it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/noise.h"
#include "store/courses_posix.h"

namespace finitude::compare {

// What a run left in its store.sqlite.
struct Course {
  std::vector<store::PointSeries> series;
  std::vector<store::BatchContent> batches;
};

// A value of both at a step for which both stores have it exactly: points begin and end there.
struct SeriesDifference {
  std::string quantity, optimizer, parameter;
  std::size_t steps = 0;                        // that were compared
  Level level = Level::kSame;                   // as the first difference has it
  std::uint64_t last_same = 0, first_step = 0;  // around the first difference; last_same: 0 where there is none
  bool has_same = false;                        // a step before it has the same value
  double a = 0, b = 0;                          // there; NaN: none is finite
  std::uint64_t largest_step = 0;               // of the largest relative difference
  double relative = 0, largest = 0;             // there; the largest of all
};

struct CourseJudgement {
  std::vector<SeriesDifference> differing;  // by first_step; those of optimizers first
  std::size_t compared = 0;                 // series of both
  std::size_t only_a = 0, only_b = 0;       // series
  std::size_t batches = 0;                  // micro-batches of both
  bool has_other_data = false;              // the first whose rows differ
  std::uint64_t data_step = 0, data_micro_batch = 0;
  // The first step with a difference that is more than rounding. learning_rate and loss_scale have no rounding.
  bool diverges = false;
  std::uint64_t step = 0;
};

CourseJudgement judge_courses(const Course& a, const Course& b);

}  // namespace finitude::compare
