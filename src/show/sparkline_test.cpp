#include "show/sparkline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "show/printable.h"

namespace finitude::show {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

store::Course course(const std::string& quantity, double min, double max, const std::string& optimizer = "AdamW") {
  return {.quantity = quantity,
          .optimizer = optimizer,
          .last_step = 99,
          .first = max,
          .last = min,
          .min = min,
          .max = max,
          .parts = {max, (min + max) / 2, min}};
}

TEST(Sparkline, RisesFromTheLowestToTheHighest) {
  EXPECT_EQ(sparkline(std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7}, false, false), ".:-=+*#@");
  EXPECT_EQ(sparkline(std::vector<double>{0, 7}, false, true), "\u2581\u2588");
  EXPECT_EQ(sparkline(std::vector<double>{1, 10, 100}, true, false), ".+@");
}

TEST(Sparkline, DrawsNothingWhereThereIsNoValue) {
  EXPECT_EQ(sparkline(std::vector<double>{1, kNan, 2}, false, false), ". @");
  EXPECT_EQ(sparkline(std::vector<double>{-1, 1, 10}, true, false), " .@");
  EXPECT_EQ(sparkline(std::vector<double>{5, 5}, false, false), "..");
  EXPECT_EQ(sparkline({}, false, true), "");
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(sparkline(std::vector<double>{-most, most}, false, false), ".@");
}

TEST(CourseTable, HasALineForEachQuantity) {
  const std::string table = course_table(
      {course("loss", 0.5, 3), course("gradient_norm", 1, 2), course("learning_rate", 1e-7, 1e-3), course("x", 0, 1)},
      {.width = 80, .unicode = false});
  EXPECT_THAT(table, HasSubstr("steps 0 to 99"));
  EXPECT_THAT(table, HasSubstr("loss                 @+.                      3        0.5        0.5          3\n"));
  EXPECT_THAT(table, HasSubstr("grad norm "));
  EXPECT_THAT(table, HasSubstr("learning rate (log)  "));
  EXPECT_THAT(table, Not(HasSubstr("x ")));
}

TEST(CourseTable, WithoutANormItHasTheLargestGradient) {
  const std::string table = course_table({course("gradient_absmax", 0.5, 3)}, {.width = 80});
  EXPECT_THAT(table, HasSubstr("largest grad"));
  EXPECT_EQ(course_table({course("step_seconds", 0, 1)}, {}), "");
  EXPECT_EQ(course_table({}, {}), "");
}

TEST(CourseTable, FitsTheWidth) {
  std::vector<store::Course> courses = {course("loss", -1.2345e-300, 1e300, "\x1b[31m\nA"), course("loss", 0, 1, "B")};
  courses[0].parts.assign(500, 1.0);
  for (const int width : {40, 80, 120}) {
    courses[0].parts.resize(sparkline_columns(width), 1.0);
    const std::string table = course_table(courses, {.width = width});
    EXPECT_THAT(table, Not(HasSubstr("\x1b")));
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns(line), width) << line;
  }
}

TEST(CourseTable, ShowsFourOptimizers) {
  std::vector<store::Course> courses;
  for (char name = 'a'; name < 'k'; ++name) courses.push_back(course("loss", 0, 1, std::string(1, name)));
  const std::string table = course_table(courses, {.width = 80});
  EXPECT_THAT(table, HasSubstr("d  "));
  EXPECT_THAT(table, Not(HasSubstr("e  ")));
}

}  // namespace
}  // namespace finitude::show
