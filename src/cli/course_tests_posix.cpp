#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include <nlohmann/json.hpp>

#include "cli/testing_posix.h"
#include "record/ring_posix.h"
#include "store/database.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Course : public Folder {};

TEST_F(Course, ListSaysWhereARunIsThatHasNotEnded) {
  put("run/run.json", "{}");
  record::RingWriter ring((path_ / "run" / "steps.ring").string(), 8);
  for (std::uint64_t step = 0; step < 12; ++step)
    ring.push({.step = step, .flags = record::kStepApplied, .loss = 0.25, .time_ns = step});
  EXPECT_THAT(ran({"list", path_.string()}).out, HasSubstr("12 steps  step 11, loss 0.25\n"));
  const auto listed = nlohmann::json::parse(ran({"list", "--json", path_.string()}).out)[0];
  EXPECT_EQ(listed["step"], 11);
  EXPECT_EQ(listed["loss"], 0.25);
}

TEST_F(Course, ReportHasTheCourseOfARun) {
  put("run/report.json", show::sample("clean").dump());
  const std::string run = (path_ / "run").string();
  const std::string without = ran({"report", run}).out;
  std::unique_ptr<store::Database> database;
  ASSERT_TRUE(store::Database::make(run + "/store.sqlite", {}, &database).ok());
  database->name(0, {"AdamW", {}});
  for (std::uint64_t step = 0; step < 50; ++step) {
    store::StepRow row;
    row.step = step;
    row.loss = 5.0 - 0.1 * static_cast<double>(step);
    row.learning_rate = 0.5;
    database->add(row, static_cast<double>(step));
  }
  ASSERT_TRUE(database->close(0).ok());
  const std::string with = ran({"report", run}).out;
  EXPECT_THAT(with, StartsWith(without));
  EXPECT_THAT(with, HasSubstr("\nsteps 0 to 49 "));
  EXPECT_THAT(with, HasSubstr("          5        0.1        0.1          5\n"));
  put("run/report.json", show::sample("loss_forward").dump());
  EXPECT_THAT(ran({"report", run}).out, Not(HasSubstr("steps 0 to 49")));
  fs::remove(run + "/report.json");
  put("run/run.json", "{}");
  EXPECT_THAT(ran({"report", run}).out, HasSubstr("steps 0 to 49"));
  put("run/store.sqlite", "damaged");
  EXPECT_EQ(ran({"report", run}).code, kDone);
}

std::string bad_step(int step, bool is_explained, bool is_harmless = false) {
  nlohmann::json event = {{"kind", "alarm"}, {"step", step}, {"optimizer", "AdamW"}, {"explained", is_explained}};
  if (is_explained) event["alarm"] = {{"step", step}, {"harmless", is_harmless}};
  return event.dump() + "\n";
}

TEST_F(Course, PolicySaysWhatOthersWouldHaveDone) {
  std::string events = "{\"kind\": \"start\"}\nnot JSON \"alarm\"\n";
  for (const int step : {5, 6, 7, 8, 9, 400}) events += bad_step(step, false) + bad_step(step, true);
  put("run/events.jsonl", events);
  const std::string run = (path_ / "run").string();
  const Ran got = ran({"policy", run, "--on-alarm", "skip", "--then", "rollback,raise", "--max-skips", "2"});
  EXPECT_EQ(got.code, kDone) << got.err;
  EXPECT_THAT(got.out,
              StartsWith("step 5  AdamW  skip\nstep 6  AdamW  skip\nstep 7  AdamW  roll back  bad steps in a row"));
  EXPECT_THAT(got.out, HasSubstr("step 9  AdamW  raise"));
  EXPECT_THAT(got.out, HasSubstr("not reached: 1\n"));
  const Ran lowered = ran({"policy", run, "--on-alarm", "skip", "--then", "lower-rate", "--max-skips", "3"});
  EXPECT_THAT(lowered.out, HasSubstr("step 8  AdamW  lower the rate  bad steps in a row"));
  EXPECT_EQ(ran({"policy", run, "--on-alarm", "lower-rate"}).code, kUsage);
  const auto all = nlohmann::json::parse(ran({"policy", run, "--on-alarm", "warn", "--json"}).out);
  EXPECT_EQ(all["decisions"].size(), 6u);
  EXPECT_EQ(all["ends"], false);
  EXPECT_EQ(all["decisions"][5]["action"], "apply");
  EXPECT_THAT(ran({"policy", run, "--on-alarm=skip", "--max-bad", "3"}).out,
              HasSubstr("step 8  AdamW  stop  bad steps: 4"));
}

TEST_F(Course, PolicyLeavesHarmlessStepsAlone) {
  put("run/events.jsonl", bad_step(5, false) + bad_step(5, true, true));
  EXPECT_THAT(ran({"policy", (path_ / "run").string()}).out, HasSubstr("step 5  AdamW  apply  (gradients finite)"));
}

TEST_F(Course, PolicyOfAReportAlone) {
  put("run/report.json", show::sample("loss_forward").dump());
  EXPECT_THAT(ran({"policy", (path_ / "run").string()}).out, HasSubstr("step 412  "));
  EXPECT_EQ(ran({"policy", (path_ / "none").string()}).code, kUnreadable);
  EXPECT_EQ(ran({"policy", (path_ / "run").string(), "--then", "perhaps"}).code, kUsage);
  EXPECT_EQ(ran({"policy", (path_ / "run").string(), "--max-skips", "x"}).code, kUsage);
  EXPECT_EQ(ran({"policy", (path_ / "run").string(), "--max-bad-share", "2"}).code, kUsage);
}

}  // namespace
}  // namespace finitude::cli
