#include "show/capsule_report.h"

#include <gtest/gtest.h>

#include "show/sample_reports.h"
#include "show/show.h"

namespace finitude::show {
namespace {

using nlohmann::json;

json capsule_of(const json& report) {
  return {{"kind", "finitude capsule"},
          {"schema", 1},
          {"created", "2026-11-22T10:00:00+00:00"},
          {"finitude", "0.1.0"},
          {"torch", "2.13.0"},
          {"ranks", 2},
          {"script", report["script"]},
          {"alarm", report["alarms"][0]}};
}

TEST(CapsuleReport, ShowsTheAlarmOfTheRun) {
  const json run = sample("loss_forward");
  json report;
  ASSERT_EQ(report_of_capsule(capsule_of(run), "/tmp/copy", report), "");
  EXPECT_EQ(report["outcome"], "alarm");
  EXPECT_EQ(report["watched"]["ranks"], 2);
  EXPECT_EQ(report["alarms"][0]["capsule"], "/tmp/copy");
  const TerminalOptions plain{false, 80, true};
  const std::string shown = terminal(report, plain), was = terminal(run, plain);
  const auto birth = [](const std::string& text) {
    return text.substr(text.find("born in"), text.find("again") - text.find("born in"));
  };
  EXPECT_NE(shown.find("born in"), std::string::npos);
  EXPECT_EQ(birth(shown), birth(was));
  EXPECT_EQ(shown.find("watched"), std::string::npos);  // a capsule does not know
}

TEST(CapsuleReport, OfARedactedOneShowsWhatIsThere) {
  json about = capsule_of(sample("loss_forward")), report;
  about["redacted"] = true;
  for (json& birth : about["alarm"]["births"]) {
    for (const char* key : {"file", "line", "source"}) birth.erase(key);
  }
  about["alarm"].erase("history");
  ASSERT_EQ(report_of_capsule(about, "/tmp/copy", report), "");
  EXPECT_EQ(report["alarms"][0]["capsule_redacted"], true);
  const std::string shown = terminal(report, {false, 80, true});
  EXPECT_NE(shown.find("born in"), std::string::npos);
  EXPECT_NE(shown.find(" dump"), std::string::npos);
  EXPECT_EQ(shown.find(" replay "), std::string::npos);
  about["redacted"] = false;
  EXPECT_NE(report_of_capsule(about, "/tmp/copy", report), "");
}

TEST(CapsuleReport, OfAHealthyStepHasNoAlarm) {
  json about = capsule_of(sample("loss_forward")), report;
  about.erase("alarm");
  about["healthy"] = true;
  ASSERT_EQ(report_of_capsule(about, "/tmp/copy", report), "");
  EXPECT_EQ(report["outcome"], "clean");
  EXPECT_TRUE(report["alarms"].empty());
  about["healthy"] = "yes";
  EXPECT_EQ(report_of_capsule(about, "/tmp/copy", report), "is not that of a capsule");
}

TEST(CapsuleReport, SaysWhyThereIsNone) {
  json report;
  for (const json& about : {json(), json::array(), json("text"), json::object(), json({{"kind", "finitude capsule"}}),
                            json({{"kind", "finitude capsule"}, {"alarm", {1, 2}}}),
                            json({{"kind", json::array({1})}, {"alarm", json::object()}})}) {
    EXPECT_EQ(report_of_capsule(about, "", report), "is not that of a capsule") << about;
  }
  json about = capsule_of(sample("loss_forward"));
  about["schema"] = 2;
  EXPECT_EQ(report_of_capsule(about, "", report), "is that of a capsule of schema 2; this program reads 1");
  about["schema"] = 1;
  about["alarm"].erase("step");
  EXPECT_NE(report_of_capsule(about, "", report).find("holds no report of schema 1"), std::string::npos);
  about = capsule_of(sample("loss_forward"));
  about["ranks"] = "two";
  EXPECT_NE(report_of_capsule(about, "", report), "");
}

}  // namespace
}  // namespace finitude::show
