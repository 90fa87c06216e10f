// The courses of two runs, series by series: from which step on they differ, and whether rounding explains it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/noise.h"
#include "record/ring_format.h"
#include "store/courses_posix.h"

namespace finitude::compare {

// An alarm, by events.jsonl.
struct BadStep {
  std::string optimizer, text;
  std::uint64_t step = 0;
};

// What a run left in its store.sqlite, in steps.ring and in events.jsonl.
struct Course {
  std::vector<store::PointSeries> series;
  std::vector<store::BatchContent> batches;
  std::vector<record::StepRecord> recent = {};  // by step
  std::vector<BadStep> alarms = {};
};

// Of the values of both at the steps for which both have them exactly: points begin and end there, or both rings reach
// back to it.
struct SeriesDifference {
  std::string quantity, optimizer, parameter;
  std::size_t steps = 0;                        // that were compared
  Level level = Level::kSame;                   // as the first difference has it
  std::uint64_t last_same = 0, first_step = 0;  // around the first difference; last_same: 0 where there is none
  bool has_same = false;                        // a step before it has the same value
  std::uint64_t unknown = 0;                    // steps right before first_step of which nothing is known
  double a = 0, b = 0;                          // there; NaN: none is finite
  std::uint64_t largest_step = 0;               // of the largest relative difference
  double relative = 0, largest = 0;             // there; the largest of all
  // Where they differ from the first step on: since when is one at least kFactorApart times the other? In each of the
  // last parts of the run the smallest value of one is that far above the largest of the other. Ranges since then.
  bool is_apart = false;
  std::uint64_t apart_since = 0;
  double min_a = 0, max_a = 0, min_b = 0, max_b = 0;
};
inline constexpr double kFactorApart = 2;

// A step that both took, and that ended otherwise. Empty: applied, without an alarm.
struct OtherFate {
  std::uint64_t step = 0;
  std::string optimizer, a, b;
};

// The last step of an optimizer of both, where that is another one.
struct OtherEnd {
  std::string optimizer;
  std::uint64_t a = 0, b = 0;
};

struct CourseJudgement {
  std::vector<SeriesDifference> differing;  // by first_step; those of optimizers first
  std::size_t compared = 0;                 // series of both
  std::size_t only_a = 0, only_b = 0;       // series
  std::size_t batches = 0;                  // micro-batches of both
  bool has_other_data = false;              // the first whose rows differ
  std::uint64_t data_step = 0, data_micro_batch = 0;
  std::vector<OtherFate> fates;  // by step
  std::vector<OtherEnd> ends;
  // Loss or gradients differ in the first step that was compared, as where weights, data or seeds are others; of each
  // optimizer where they differ.
  bool differs_from_start = false;
  // The first step with a difference that is more than rounding; what follows from another start is none of them,
  // unless it is all there is. learning_rate and loss_scale have no rounding.
  bool diverges = false;
  std::uint64_t step = 0;
};

CourseJudgement judge_courses(const Course& a, const Course& b);

}  // namespace finitude::compare
