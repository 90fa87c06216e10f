#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "show/sample_reports.h"
#include "show/show.h"

namespace finitude::show {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json changed(const char* name, const char* pointer, json value) {
  json report = sample(name);
  report[json::json_pointer(pointer)] = std::move(value);
  return report;
}

TEST(Problem, SamplesAreFine) {
  ASSERT_GE(samples().size(), 9u);
  for (const auto& [name, report] : samples()) EXPECT_EQ(problem(report), "") << name;
}

TEST(Problem, NamesTheKeyThatIsWrong) {
  EXPECT_EQ(problem(changed("loss_forward", "/alarms/0/step", "412")), "alarms[0].step is not a count");
  EXPECT_EQ(problem(changed("loss_forward", "/alarms/0/step", -1)), "alarms[0].step is not a count");
  EXPECT_EQ(problem(changed("loss_forward", "/alarms/0/births/0/inputs/0/nan", 1.5)),
            "alarms[0].births[0].inputs[0].nan is not a count");
  EXPECT_EQ(problem(changed("loss_forward", "/alarms/0/weights", "good")),
            "alarms[0].weights is not one of clean|damaged");
  EXPECT_THAT(problem(changed("loss_forward", "/alarms/0/births/0/inputs/0/max", "inf")),
              HasSubstr("inputs[0].max is not a number"));
  EXPECT_EQ(problem(changed("gradient_backward", "/alarms/0/births/0/forward/line", "x")),
            "alarms[0].births[0].forward.line is not a count or null");
  EXPECT_EQ(problem(changed("clean", "/watched/not_watched", json::array({1}))), "watched.not_watched[0] is not text");
  json report = sample("clean");
  report.erase("watched");
  EXPECT_EQ(problem(report), "watched is missing");
}

TEST(Problem, OtherSchemasAndOtherDocuments) {
  EXPECT_EQ(problem(changed("clean", "/schema", 2)), "schema 2 is not known here; this reads schema 1");
  EXPECT_EQ(problem(json::object()), "not a report: schema is missing");
  EXPECT_EQ(problem(json::array()), "not a report: no JSON object");
  EXPECT_EQ(problem(json()), "not a report: no JSON object");
}

TEST(Problem, OutcomeAndAlarmsMustAgree) {
  EXPECT_NE(problem(changed("loss_forward", "/outcome", "clean")), "");
  EXPECT_NE(problem(changed("clean", "/outcome", "alarm")), "");
  EXPECT_NE(problem(changed("unwatched", "/reason", "")), "");
}

TEST(Problem, UnknownKeysAreAllowedAndLimited) {
  EXPECT_EQ(problem(changed("clean", "/later", json{{"a", 1}})), "");
  EXPECT_EQ(problem(changed("clean", "/later", std::string((1 << 20) + 1, 'x'))), "a text above 1 MiB");
  EXPECT_EQ(problem(changed("clean", "/reason", std::string(1 << 20, 'x'))), "");
  json deep = 1;
  for (int i = 0; i < 40; ++i) deep = json::array({deep});
  EXPECT_EQ(problem(changed("clean", "/later", deep)), "nested deeper than 32");
}

TEST(Problem, TooManyAlarms) {
  json report = sample("loss_forward");
  const json alarm = report["alarms"][0];
  while (report["alarms"].size() < kMaxAlarms) report["alarms"].push_back(alarm);
  EXPECT_EQ(problem(report), "");
  report["alarms"].push_back(alarm);
  EXPECT_EQ(problem(report), "alarms has more than 1000 items");
}

}  // namespace
}  // namespace finitude::show
