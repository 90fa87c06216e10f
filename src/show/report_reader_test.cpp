#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "finitude/report.h"
#include "show/sample_reports.h"

namespace finitude {
namespace {

TEST(ReportReader, GivesWhatTheDocumentSays) {
  const nlohmann::json json = show::sample("loss_forward");
  const Result<Report> report = parse_report(json.dump());
  ASSERT_TRUE(report.ok()) << report.why();
  EXPECT_EQ(report->outcome, "alarm");
  EXPECT_EQ(report->steps, json["watched"]["steps"].get<std::uint64_t>());
  ASSERT_EQ(report->alarms.size(), json["alarms"].size());
  const Alarm& alarm = report->alarms[0];
  const nlohmann::json& said = json["alarms"][0];
  EXPECT_EQ(alarm.step, said["step"].get<std::int64_t>());
  EXPECT_EQ(alarm.sink_kind, said["sink"]["kind"].get<std::string>());
  EXPECT_EQ(alarm.weights_clean, said["weights"] == "clean");
  ASSERT_EQ(alarm.births.size(), said["births"].size());
  EXPECT_EQ(alarm.births[0].place.op, said["births"][0]["op"].get<std::string>());
  EXPECT_EQ(alarm.births[0].place.line, said["births"][0]["line"].get<std::int64_t>());
  EXPECT_EQ(alarm.births[0].rows.size(), said["births"][0]["rows"].size());
  EXPECT_EQ(alarm.cause.cause_class, said["cause"]["class"].get<std::string>());
  EXPECT_EQ(alarm.cause.experiments.size(), said["cause"]["experiments"].size());
  EXPECT_EQ(alarm.fix.text, said["fix"]["text"].get<std::string>());
}

TEST(ReportReader, SaysWhyThereIsNone) {
  EXPECT_NE(parse_report("{").why(), "");
  EXPECT_NE(parse_report("[]").why(), "");
  EXPECT_NE(parse_report(R"({"schema": 2})").why(), "");
  const Result<Report> missing = read_report("/nonexistent/report.json");
  EXPECT_FALSE(missing.ok());
  EXPECT_NE(missing.why().find("/nonexistent/report.json"), std::string::npos);
}

TEST(ReportReader, ReadsTheDirectoryOfARun) {
  const auto folder = std::filesystem::temp_directory_path() / "finitude_report_reader_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "report.json") << show::sample("clean").dump();
  const Result<Report> report = read_report(folder.string());
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(report.ok()) << report.why();
  EXPECT_EQ(report->outcome, "clean");
  EXPECT_TRUE(report->alarms.empty());
}

}  // namespace
}  // namespace finitude
