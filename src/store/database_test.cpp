#include "store/database.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "store/testing.h"

namespace finitude::store {
namespace {

namespace fs = std::filesystem;

class StoreDatabase : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    const Status made = Database::make(path_, {{"rank", "0"}}, &database_);
    ASSERT_TRUE(made.ok()) << made.why();
  }
  void TearDown() override {
    database_.reset();
    StoreTest::TearDown();
  }

  // The only value of a query, by another connection.
  double ask(const std::string& query) const {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open_v2(path_.c_str(), &db, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(db, query.c_str(), -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    EXPECT_EQ(sqlite3_step(statement), SQLITE_ROW) << query;
    const double value = sqlite3_column_type(statement, 0) == SQLITE_NULL ? std::numeric_limits<double>::quiet_NaN()
                                                                          : sqlite3_column_double(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return value;
  }

  std::unique_ptr<Database> database_;
};

StepRow row_of(std::uint64_t step, double loss, std::span<const float> gradients = {},
               std::span<const float> weights = {}) {
  StepRow row;
  row.step = step;
  row.loss = loss;
  row.gradients = gradients;
  row.weights = weights;
  return row;
}

TEST_F(StoreDatabase, ATensorHasOneSeries) {
  database_->name(0, {"Adam", {"w"}});
  database_->name(kFirstTensor, {.class_name = "average", .is_tensor = true});
  for (std::uint64_t step = 0; step < 3; ++step) {
    StepRow row = row_of(step, 1.0);
    row.logits_absmax = 7.0;
    database_->add(row, 1.0 + static_cast<double>(step));
    StepRow tensor = row_of(step, 1.0);
    tensor.optimizer = kFirstTensor;
    tensor.gradient_absmax = static_cast<double>(step);
    database_->add(tensor, 1.0 + static_cast<double>(step));
  }
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM series WHERE optimizer = 'average'"), 1);
  const std::string of = " FROM point JOIN series ON series.id = point.series WHERE quantity = ";
  EXPECT_EQ(ask("SELECT max(max)" + of + "'tensor_absmax' AND optimizer = 'average'"), 2);
  EXPECT_EQ(ask("SELECT max(max)" + of + "'logits_absmax' AND optimizer = 'Adam'"), 7);
}

TEST_F(StoreDatabase, IsReadWhileItIsWritten) {
  database_->name(0, {"Adam", {"w", "b"}});
  const std::vector<float> values = {0.5f, -1.0f, 2.0f};  // the second has no gradient; the third came later
  database_->add(row_of(0, 4.0, values, values), 100.0);
  database_->add(row_of(1, 3.0, values), 100.5);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("PRAGMA user_version"), kSchemaVersion);
  EXPECT_EQ(ask("SELECT value FROM info WHERE key = 'rank'"), 0);
  EXPECT_EQ(ask("SELECT count(*) FROM series"), 6);  // loss, step_seconds, two of gradients, two of weights
  EXPECT_EQ(ask("SELECT count(*) FROM series WHERE parameter = '2' AND optimizer = 'Adam'"), 2);
  const std::string loss = " FROM point JOIN series ON id = series WHERE quantity = 'loss' AND step = ";
  EXPECT_EQ(ask("SELECT last" + loss + "0"), 4.0);
  EXPECT_EQ(ask("SELECT last" + loss + "1"), 3.0);
  EXPECT_EQ(ask("SELECT time" + loss + "1"), 100.5);
  EXPECT_EQ(ask("SELECT max FROM point JOIN series ON id = series WHERE parameter = 'w'"), 0.5);
  database_->add(row_of(2, 1.0), 101.0);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT last" + loss + "2"), 1.0);
}

TEST_F(StoreDatabase, NormsOfParametersAndDtypesAreKept) {
  database_->name(0, {"Adam", {"w", "b"}, {"float16"}});
  const std::vector<float> largest = {0.5f, -1.0f, 3.0f}, norms = {2.5f, -1.0f, 4.0f};  // the second has no gradient
  StepRow row = row_of(0, 1.0, largest);
  row.norms = norms;
  database_->add(row, 1);
  ASSERT_TRUE(database_->commit().ok());
  const std::string of = " FROM point JOIN series ON id = series WHERE quantity = 'gradient_norm' AND parameter = ";
  EXPECT_EQ(ask("SELECT last" + of + "'w'"), 2.5);
  EXPECT_EQ(ask("SELECT count(*)" + of + "'b'"), 0);
  EXPECT_EQ(ask("SELECT last" + of + "'2'"), 4.0);
  EXPECT_EQ(ask("SELECT count(*) FROM series WHERE dtype = 'float16' AND parameter = 'w'"), 2);
  EXPECT_EQ(ask("SELECT count(*) FROM series WHERE dtype IS NULL AND parameter = '2'"), 2);
  EXPECT_EQ(ask("SELECT count(*) FROM series WHERE dtype IS NOT NULL AND parameter IS NULL"), 0);
}

TEST_F(StoreDatabase, PartsRatesAndMicroBatchesHaveSeries) {
  database_->name(0, {"SGD", {"w", "b"}});
  const std::vector<float> weights = {1.0f, 2.0f}, parts = {0.25f, -1.0f, 3.0f, 4.0f, 0.5f, 0.0f, -1.0f, -1.0f};
  const std::vector<double> rates = {0.125, 0.0625};
  for (std::uint64_t step = 0; step < 2; ++step) {
    StepRow row = row_of(step, 2.0, {}, weights);
    row.loss_first = 3.0;
    row.loss_min = 1.0;
    row.loss_max = 9.0;
    row.parts = parts;
    row.more_rates = rates;
    database_->add(row, 1.0 + static_cast<double>(step));
  }
  ASSERT_TRUE(database_->commit().ok());
  const std::string of = " FROM point JOIN series ON id = series WHERE quantity = ";
  EXPECT_EQ(ask("SELECT first" + of + "'loss' AND step = 0"), 3.0);
  EXPECT_EQ(ask("SELECT min" + of + "'loss' AND step = 1"), 1.0);
  EXPECT_EQ(ask("SELECT max" + of + "'loss' AND step = 1"), 9.0);
  EXPECT_EQ(ask("SELECT last" + of + "'loss' AND step = 1"), 2.0);
  EXPECT_EQ(ask("SELECT last" + of + "'learning_rate_2' AND parameter IS NULL"), 0.125);
  EXPECT_EQ(ask("SELECT last" + of + "'learning_rate_3' AND parameter IS NULL"), 0.0625);
  EXPECT_EQ(ask("SELECT last" + of + "'update_ratio' AND parameter = 'w'"), 0.25);
  EXPECT_EQ(ask("SELECT count(*)" + of + "'update_ratio' AND parameter = 'b'"), 0);
  EXPECT_EQ(ask("SELECT last" + of + "'state_absmax' AND parameter = 'b'"), 4.0);
  EXPECT_EQ(ask("SELECT last" + of + "'gradient_zeros' AND parameter = 'w'"), 0.5);
  EXPECT_EQ(ask("SELECT count(*)" + of + "'gradient_subnormals'"), 0);
}

TEST_F(StoreDatabase, WhatIsNotFiniteIsNull) {
  database_->name(0, {"SGD", {}});
  database_->add(row_of(0, 1.0), 1);
  database_->add(row_of(1, std::numeric_limits<double>::quiet_NaN()), 2);
  database_->add(row_of(2, std::numeric_limits<double>::infinity()), 3);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM point JOIN series ON id = series WHERE quantity = 'loss' AND last IS NULL"), 2);
}

TEST_F(StoreDatabase, AClosedOneLeavesOneFile) {
  database_->name(0, {"SGD", {}});
  database_->add(row_of(0, 1.0), 1);
  ASSERT_TRUE(database_->close(3).ok());
  database_.reset();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_EQ(ask("SELECT value FROM info WHERE key = 'steps_left_out'"), 3);
}

TEST_F(StoreDatabase, OptimizersOfOneClassAreDistinguished) {
  database_->name(0, {"Adam", {}});
  database_->name(1, {"Adam", {}});
  database_->add(row_of(0, 1.0), 1);
  StepRow second = row_of(0, 2.0);
  second.optimizer = 1;
  database_->add(second, 2);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT last FROM point JOIN series ON id = series WHERE optimizer = 'Adam (2)'"), 2.0);
}

// So many rows of data set 1, from that one on.
std::vector<std::byte> batch_of(std::int64_t first, std::uint32_t count, RowsWriter* rows) {
  std::vector<std::byte> ids;
  for (std::uint32_t i = 0; i < count; ++i) append_id(first + i, i == 0 ? 0 : first + i - 1, &ids);
  rows->add({1, 2, 3, count, ids});
  return {rows->bytes().begin(), rows->bytes().end()};
}

StepRow rows_of(std::uint64_t step, std::span<const std::byte> batches) {
  StepRow row = row_of(step, 1.0);
  row.batches = batches;
  return row;
}

TEST_F(StoreDatabase, RowsOfMicroBatchesAreInTheFile) {
  database_->name(0, {"SGD", {}});
  database_->name({1, "Texts", 500});
  RowsWriter rows;
  (void)batch_of(7, 1, &rows);
  rows.add({});  // is not known, and keeps its place
  const auto bytes = batch_of(300, 2, &rows);
  database_->add(rows_of(4, bytes), 1);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE optimizer = 'SGD' AND step = 4 AND applied = 1"), 2);
  EXPECT_EQ(ask("SELECT hex(ids) = '0E' FROM batch WHERE micro_batch = 0"), 1);
  EXPECT_EQ(ask("SELECT hex(ids) = 'D80402' AND count = 2 FROM batch WHERE micro_batch = 2"), 1);  // 600, then 2
  EXPECT_EQ(ask("SELECT epoch = 2 AND worker = 3 AND event IS NULL FROM batch WHERE micro_batch = 2"), 1);
  EXPECT_EQ(ask("SELECT length FROM dataset WHERE id = 1 AND class = 'Texts'"), 500);
}

TEST_F(StoreDatabase, ABadStepHasRowsAndNoPoint) {
  database_->name(0, {"SGD", {}});
  RowsWriter rows;
  const auto bytes = batch_of(-3, 2, &rows);
  StepRow bad = rows_of(0, bytes);
  bad.is_applied = false;
  bad.event = StepEvent::kAlarm;
  database_->add(bad, 1);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE event = 'alarm' AND applied = 0"), 1);
  EXPECT_EQ(ask("SELECT count(*) FROM point"), 0);
  database_->add(rows_of(0, bad.batches), 2);  // it is applied all the same
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE event = 'alarm' AND applied = 1"), 1);
}

TEST_F(StoreDatabase, AnEventMarksAStepThatIsThere) {
  database_->name(0, {"SGD", {}});
  RowsWriter rows;
  const auto bytes = batch_of(0, 2, &rows);
  database_->add(rows_of(0, bytes), 1);
  database_->add(rows_of(1, bytes), 1);
  StepRow event;
  event.is_applied = false;
  event.event = StepEvent::kSpike;
  database_->add(event, 2);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE event = 'spike' AND step = 0"), 1);
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE event IS NULL AND step = 1"), 1);
}

TEST_F(StoreDatabase, AnEventIsNotHiddenByAWeakerOne) {
  database_->name(0, {"SGD", {}});
  RowsWriter rows;
  const auto bytes = batch_of(0, 2, &rows);
  database_->add(rows_of(0, bytes), 1);
  const auto mark = [&](StepEvent event) {
    StepRow row;
    row.is_applied = false;
    row.event = event;
    database_->add(row, 2);
  };
  for (const StepEvent event : {StepEvent::kWarning, StepEvent::kSpike, StepEvent::kWarning}) mark(event);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE event = 'spike'"), 1);
  for (const StepEvent event : {StepEvent::kAlarm, StepEvent::kSpike}) mark(event);
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_EQ(ask("SELECT count(*) FROM batch WHERE event = 'alarm'"), 1);
}

TEST_F(StoreDatabase, OldRowsGoButForThoseOfEvents) {
  database_->name(0, {"SGD", {}});
  std::vector<std::byte> bytes;
  for (std::uint64_t step = 0; step < 40; ++step) {
    RowsWriter rows;
    bytes = batch_of(std::int64_t{1} << 40, 1u << 20, &rows);  // 1 MB
    StepRow row = rows_of(step, bytes);
    if (step == 3) row.event = StepEvent::kAlarm;
    database_->add(row, static_cast<double>(step));
    if (database_->must_commit()) {
      ASSERT_TRUE(database_->commit().ok());
    }
  }
  ASSERT_TRUE(database_->commit().ok());
  EXPECT_LE(ask("SELECT sum(length(ids)) FROM batch"), static_cast<double>(kMostBatchBytes + (3u << 20)));
  EXPECT_EQ(ask("SELECT max(step) FROM batch"), 39);
  EXPECT_EQ(ask("SELECT min(step) FROM batch"), 3);
  EXPECT_GT(ask("SELECT min(step) FROM batch WHERE event IS NULL"), 8);
}

// steps * seconds: how long the training takes. Every step has a loss and so many gradients.
void train(Database* database, std::uint64_t steps, std::size_t parameters, double seconds) {
  std::vector<float> values(parameters);
  const std::vector<float> parts(parameters * kParts, 0.5f);
  std::vector<std::string> names(parameters);
  for (std::size_t i = 0; i < parameters; ++i) names[i] = "layers." + std::to_string(i) + ".weight";
  database->name(0, {"AdamW", names});
  double committed = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < parameters; ++i) values[i] = static_cast<float>((step * (i + 7)) % 1009);
    const double time = static_cast<double>(step) * seconds;
    StepRow row = row_of(step, std::sin(static_cast<double>(step)), values);
    if (step % 8 == 0) {
      row.weights = values;
      row.parts = parts;
    }
    row.gradient_norm = row.gradient_absmax = row.learning_rate = row.loss_scale =
        0.125 * static_cast<double>(step % 99);
    database->add(row, time);
    if (time - committed < 0.5 && !database->must_commit()) continue;
    committed = time;
    ASSERT_TRUE(database->commit().ok());
  }
}

void expect_bounded(const auto& ask, std::uint64_t steps) {
  EXPECT_LE(ask("SELECT max(n) FROM (SELECT count(*) AS n FROM point GROUP BY series)"), kMostPoints);
  // Of each series no step is missing, and none is in two points.
  EXPECT_EQ(
      ask("SELECT count(*) FROM (SELECT step - lag(last_step) OVER (PARTITION BY series ORDER BY step) AS gap FROM "
          "point JOIN series ON id = series WHERE quantity = 'gradient_absmax') WHERE gap <> 1"),
      0);
  EXPECT_EQ(ask("SELECT max(last_step) FROM point"), static_cast<double>(steps - 1));
  EXPECT_EQ(
      ask("SELECT min(min) FROM point JOIN series ON id = series WHERE quantity = 'gradient_absmax' AND parameter "
          "IS NOT NULL"),
      0);
  EXPECT_EQ(
      ask("SELECT max(max) FROM point JOIN series ON id = series WHERE quantity = 'gradient_absmax' AND parameter "
          "IS NOT NULL"),
      1008);
}

TEST_F(StoreDatabase, AMillionStepsAreBounded) {
  train(database_.get(), 1'000'000, 2, 0.004);
  ASSERT_TRUE(database_->close(0).ok());
  expect_bounded([&](const std::string& query) { return ask(query); }, 1'000'000);
  EXPECT_LT(fs::file_size(path_), 4u << 20);
}

TEST_F(StoreDatabase, AStepOfHundredTensorsTakesTwoKilobytes) {
  train(database_.get(), 1000, 100, 1.0);  // slow: each step is a point of each quantity of the optimizer
  ASSERT_TRUE(database_->close(0).ok());
  EXPECT_LT(fs::file_size(path_), 1000u * 2048) << fs::file_size(path_) / 1000.0;
}

// FINITUDE_STORE_STEPS=10000000 (make bench-store): some minutes.
TEST_F(StoreDatabase, ManyStepsOfHundredTensorsAreBounded) {
  const char* wanted = std::getenv("FINITUDE_STORE_STEPS");
  const std::uint64_t steps = wanted == nullptr ? 20'000 : std::strtoull(wanted, nullptr, 10);
  train(database_.get(), steps, 100, 0.001);
  ASSERT_TRUE(database_->close(0).ok());
  expect_bounded([&](const std::string& query) { return ask(query); }, steps);
  if (wanted != nullptr) {
    struct rusage used = {};
    getrusage(RUSAGE_SELF, &used);
    std::printf("%llu steps: %llu bytes, %ld KB of memory\n", static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(fs::file_size(path_)), used.ru_maxrss);
  }
  if (wanted == nullptr) {
    EXPECT_LT(fs::file_size(path_), 64u << 20);
  }
  constexpr double kPointBytes = 64;
  EXPECT_LT(fs::file_size(path_), ask("SELECT count(*) FROM series") * kMostPoints * kPointBytes);
}

}  // namespace
}  // namespace finitude::store
