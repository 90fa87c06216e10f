#include "store/courses_posix.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <random>

#include "store/database.h"
#include "store/testing.h"

namespace finitude::store {
namespace {

class Courses : public StoreTest {
 protected:
  void write(std::uint64_t steps) {
    std::unique_ptr<Database> database;
    ASSERT_TRUE(Database::make(path_, {}, &database).ok());
    database->name(0, {"AdamW", {"weight"}});
    const std::array<float, 1> gradients{2.0f};
    for (std::uint64_t step = 0; step < steps; ++step) {
      StepRow row;
      row.optimizer = 0;
      row.step = step;
      row.loss = step == 3 ? std::numeric_limits<double>::quiet_NaN() : 10.0 - static_cast<double>(step % 7);
      row.gradient_norm = row.gradient_absmax = 1;
      row.learning_rate = 0.5;
      row.gradients = gradients;
      database->add(row, static_cast<double>(step));
    }
    ASSERT_TRUE(database->close(0).ok());
  }
  void change(const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }
  std::vector<Course> courses_;
};

TEST_F(Courses, HaveTheValuesOfWholeOptimizers) {
  write(100);
  ASSERT_EQ(read_courses(path_, 20, &courses_).why(), "");
  ASSERT_FALSE(courses_.empty());
  const Course& loss = courses_.front();
  EXPECT_EQ(loss.quantity, "loss");
  EXPECT_EQ(loss.optimizer, "AdamW");
  EXPECT_EQ(loss.first_step, 0u);
  EXPECT_EQ(loss.last_step, 99u);
  EXPECT_EQ(loss.first, 10);
  EXPECT_EQ(loss.last, 10 - 99 % 7);
  EXPECT_EQ(loss.min, 4);
  EXPECT_EQ(loss.max, 10);
  EXPECT_EQ(loss.parts.size(), 20u);
  for (const Course& course : courses_) EXPECT_NE(course.quantity, "weight_absmax");
}

TEST_F(Courses, HaveNoMorePartsThanSteps) {
  write(5);
  ASSERT_TRUE(read_courses(path_, 20, &courses_).ok());
  ASSERT_EQ(courses_.front().parts.size(), 5u);
  EXPECT_TRUE(std::isnan(courses_.front().parts[3]));
  EXPECT_EQ(courses_.front().parts[4], 6);
}

TEST_F(Courses, AreReadWhileTheFileIsWritten) {
  std::unique_ptr<Database> database;
  ASSERT_TRUE(Database::make(path_, {}, &database).ok());
  database->name(0, {"SGD", {}});
  StepRow row;
  row.loss = 3;
  database->add(row, 1.0);
  ASSERT_TRUE(database->commit().ok());
  ASSERT_EQ(read_courses(path_, 8, &courses_).why(), "");
  EXPECT_EQ(courses_.at(0).last, 3);
}

TEST_F(Courses, NoStoreIsAStatus) {
  EXPECT_EQ(read_courses(path_, 8, &courses_).code(), StatusCode::kUnreadable);
  EXPECT_EQ(read_courses(folder_.string(), 8, &courses_).code(), StatusCode::kUnreadable);
  std::ofstream(path_) << "no database, but long enough to be one";
  EXPECT_FALSE(read_courses(path_, 8, &courses_).ok());
}

TEST_F(Courses, OtherSchemasAreRefused) {
  write(10);
  change("PRAGMA user_version = 2");
  EXPECT_EQ(read_courses(path_, 8, &courses_).code(), StatusCode::kUnsupported);
  change("PRAGMA user_version = 1; ALTER TABLE point RENAME TO other; CREATE VIEW point AS SELECT * FROM other");
  EXPECT_EQ(read_courses(path_, 8, &courses_).code(), StatusCode::kCorrupt);
}

TEST_F(Courses, ValuesOfWrongTypesAreNoValues) {
  write(10);
  change("UPDATE point SET first = 'x', min = 9e999");
  ASSERT_TRUE(read_courses(path_, 8, &courses_).ok());
  EXPECT_TRUE(courses_.empty());
  change("UPDATE point SET last_step = -1");
  EXPECT_EQ(read_courses(path_, 8, &courses_).code(), StatusCode::kCorrupt);
}

TEST_F(Courses, QueriesEndAtTheTimeLimit) {
  write(300);
  ASSERT_TRUE(read_courses(path_, 8, &courses_).ok());
  EXPECT_EQ(read_courses(path_, 8, &courses_, std::chrono::milliseconds(0)).code(), StatusCode::kCorrupt);
}

TEST_F(Courses, DamagedFilesDoNoHarm) {
  write(300);
  std::ifstream file(path_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = whole;
    for (int change = 0; change < 8; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (i % 5 == 0) bytes.resize(random() % bytes.size());
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    (void)read_courses(path_, 16, &courses_);
    EXPECT_LE(courses_.size(), kMostCourses);
  }
}

}  // namespace
}  // namespace finitude::store
