#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "incident/alarm.h"
#include "incident/answer.h"
#include "incident/member.h"
#include "incident/merge.h"
#include "incident/onset.h"
#include "incident/report.h"
#include "incident/sentences.h"
#include "show/show.h"

namespace finitude::incident {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json report_of(std::uint64_t steps, std::vector<Alarm> alarms = {}, std::uint64_t ranks = 1) {
  RunFacts facts;
  facts.python = "3.11.2";
  facts.counters = {1, steps, steps, 4 * steps, 0, 0};
  facts.ranks = ranks;
  if (!alarms.empty()) facts.first_alarm = alarms[0].text;
  json report = json(report_head(facts));
  report["alarms"] = report["advisories"] = json::array();
  for (const Alarm& alarm : alarms) report["alarms"].push_back(json(to_json(alarm)));
  return report;
}

Alarm alarm_at(std::uint64_t step, int rank = 0) {
  Alarm alarm;
  alarm.step = step;
  alarm.rank = rank;
  alarm.optimizer = "SGD";
  alarm.sink = {"loss", "loss"};
  alarm.text = "loss is NaN";
  alarm.policy = "stop";
  return alarm;
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(path_); }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void put(const std::string& name, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string path_ =
      ::testing::TempDir() + "incident_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST(Alarm, IsWhatTheSchemaAllows) {
  Alarm alarm = alarm_at(3);
  EXPECT_EQ(show::problem(report_of(3, {alarm})), "");
  alarm.onset =
      onset_of({{0, 1, 1, 0.1}, {1, 1, 1, 0.1}, {2, 8, 2, 0.1}, {3, 64, 4, 0.1}, {4, 512, 8, 0.1}}, {}, "SGD");
  EXPECT_EQ(alarm.onset["name"], "loss");
  alarm.fix.emplace().text = "clamp it";
  alarm.gradients = Gradients{{{"fc.weight", 1, 2, 12}}, 3};
  alarm.births.push_back(bare_birth("optimizer", "SGD::step"));
  alarm.capsule = "step-000003";
  alarm.capsule_pending = true;
  alarm.loss = std::numeric_limits<double>::quiet_NaN();
  alarm.action = action_text(decide::Action::kSkip, {});
  const json report = report_of(3, {alarm});
  EXPECT_EQ(show::problem(report), "");
  EXPECT_EQ(report["alarms"][0]["loss"], "NaN");
  EXPECT_EQ(report["alarms"][0]["action"], "the step was skipped");
  EXPECT_EQ(report["outcome"], "alarm");
}

TEST(Alarm, AdoptsFindings) {
  json found = {
      {"births", json::array({bare_birth("forward", "aten::log")})},
      {"path", json::array()},
      {"cause",
       {{"class", "log-of-zero"},
        {"confidence", "proven"},
        {"text", "log of 0"},
        {"experiments", json::array()},
        {"tried_seconds", 0.5},
        {"budget_seconds", 2.0},
        {"out_of_time", false}}},
      {"fix", {{"text", "add eps"}, {"verified", true}, {"file", "a.py"}, {"line", 7}, {"tried", "eps = 1e-8"}}}};
  const json cause = found["cause"], fix = found["fix"];
  Alarm alarm = alarm_at(1);
  alarm.adopt(found);
  EXPECT_EQ(json(to_json(alarm))["cause"], cause);
  EXPECT_EQ(json(to_json(alarm))["fix"], fix);
  EXPECT_EQ(to_json(alarm)["births"].size(), 1u);
}

TEST(Sentences, SayWhatBecameOfTheStep) {
  using decide::Action;
  EXPECT_EQ(action_text(Action::kApply, {.applied = true}), "reported, the step is applied");
  EXPECT_EQ(action_text(Action::kSkip, {.applied = true}), "reported, the step is applied");
  EXPECT_EQ(action_text(Action::kRollBack, {.undone = true}), "the step was undone");
  EXPECT_EQ(action_text(Action::kStop, {.undone = true}), "the step was undone, stopped");
  EXPECT_EQ(action_text(Action::kRaise, {.at_start = true}), "stopped before the optimizer");
  EXPECT_EQ(count_text(3, 1), "3 NaN and 1 Inf");
  EXPECT_EQ(count_text(0, 0), "no");
}

TEST(Report, SaysWhyNothingWasWatched) {
  RunFacts facts;
  EXPECT_THAT(report_head(facts)["reason"].get<std::string>(), HasSubstr("Recorder::step"));
  facts.python = "3.11";
  EXPECT_THAT(report_head(facts)["reason"].get<std::string>(), HasSubstr("no optimizer and no backward"));
  facts.failure = "switched off";
  EXPECT_EQ(report_head(facts)["reason"], "switched off");
  facts.first_alarm = "loss is NaN";
  EXPECT_EQ(report_head(facts)["outcome"], "alarm");
}

TEST(ClosingLine, SaysFiniteOnlyWhereNothingElseWasSeen) {
  json report = report_of(5);
  report["seconds"] = 3.42;
  EXPECT_EQ(closing_line(report), "finitude: 5 steps watched in 3.4 s, 20 gradients scanned, all finite");
  report["watched"]["handled_by_script"] = 1;
  EXPECT_EQ(closing_line(report),
            "finitude: 5 steps watched in 3.4 s, 20 gradients scanned, 1 bad step handled by the script");
  report["advisories"].push_back(
      advisory("handled-by-script", 4, "the loss was not finite; run it with --level trace"));
  EXPECT_THAT(closing_line(report), HasSubstr("1 bad step handled by the script (step 4: the loss was not finite)"));
  report["watched"]["handled_by_script"] = 2;
  EXPECT_THAT(closing_line(report), HasSubstr("script (the last one, step 4: the loss was not finite)"));
  json full = report;
  for (std::size_t i = 0; i < kAdvisoriesOfAKind; ++i)
    full["advisories"].push_back(advisory("handled-by-script", 5, "the loss was not finite"));
  EXPECT_THAT(closing_line(full), HasSubstr("script (one of them, step 5: "));
  report["python"] = nullptr;
  EXPECT_THAT(closing_line(report), HasSubstr("handled by the program"));
  report = report_of(1, {alarm_at(0)});
  report["alarms_unlisted"] = 4;
  EXPECT_EQ(closing_line(report), "finitude: 1 step watched in 0.0 s, 4 gradients scanned, 5 alarms");
  report["watched"].update({{"skipped", 3}, {"went_back", 2}, {"lowered_rates", 1}});
  EXPECT_THAT(closing_line(report),
              HasSubstr("5 alarms, 3 bad steps skipped, rolled back 2 times, learning rate lowered 1 time"));
  EXPECT_EQ(show::problem(report), "");
  report["warnings"] = {{{"what", "outlier"}}, {{"what", "growth"}}, {{"what", "outlier"}}};
  EXPECT_THAT(closing_line(report), HasSubstr("lowered 1 time, 1 warning, 2 outliers"));
}

TEST(ClosingLine, NamesTheNumberThatEndedTheProgram) {
  json report = report_of(5);
  report["advisories"].push_back(
      advisory("ended-by-arithmetic", 5, "ZeroDivisionError ended the program at a.py:3: n is 0"));
  EXPECT_THAT(closing_line(report),
              HasSubstr("20 gradients scanned, ZeroDivisionError ended the program at a.py:3: n is 0, 1 advisory"));
  EXPECT_THAT(closing_line(report), Not(HasSubstr("all finite")));
  report["outcome"] = "unwatched";
  report["reason"] = "backward was never called";
  EXPECT_THAT(
      closing_line(report),
      HasSubstr("not watched: backward was never called, ZeroDivisionError ended the program at a.py:3: n is 0"));
}

TEST(ClosingLine, StepsThatTheScalerSkippedWereNotFinite) {
  json report = report_of(5);
  report["watched"]["scaler_skips"] = 8;
  EXPECT_THAT(closing_line(report), HasSubstr("8 skipped by the GradScaler, all finite in what was applied"));
  report["watched"]["steps"] = 0;
  EXPECT_THAT(closing_line(report), HasSubstr("8 skipped by the GradScaler, no step was applied"));
  EXPECT_THAT(closing_line(report), Not(HasSubstr("all finite")));
}

TEST(ClosingLine, NamesWhatRuinedARunOfFiniteValues) {
  json report = report_of(5);
  report["advisories"].push_back(advisory("clipping", 2, "the gradient norm overflowed"));
  EXPECT_THAT(closing_line(report),
              HasSubstr("20 gradients scanned, clipping has set finite gradients to zero since step 2, 1 advisory"));
  json& clipping = report["advisories"].back();
  const auto words = [&](std::uint64_t last, std::uint64_t times) {
    clipping["last_step"] = last;
    clipping["times"] = times;
    return closing_line(report);
  };
  EXPECT_THAT(words(2, 1), HasSubstr("set finite gradients to zero in step 2, 1 advisory"));
  EXPECT_THAT(words(3, 2), HasSubstr("set finite gradients to zero in steps 2 to 3, 1 advisory"));
  EXPECT_THAT(words(9, 3), HasSubstr("set finite gradients to zero in 3 of the steps 2 to 9, 1 advisory"));
  report["advisories"].push_back(advisory("zero-gradients", 3, "every gradient was zero"));
  EXPECT_THAT(closing_line(report), HasSubstr("every gradient is zero since step 3, 2 advisories"));
  EXPECT_THAT(closing_line(report), Not(HasSubstr("all finite")));
}

TEST(ClosingLine, CountsTheLastStepsThatChangedNothing) {
  RunFacts facts;
  facts.counters = {.optimizers = 1, .steps = 9, .gradients_scanned = 18};
  facts.zero_gradients = 3;
  json report = json(report_head(facts));
  report["advisories"] = report["alarms"] = json::array();
  EXPECT_EQ(closing_line(report),
            "finitude: 9 steps watched in 0.0 s, 18 gradients scanned, the last 3 steps had only zero gradients");
  report["watched"]["zero_gradients"] = 1;
  EXPECT_THAT(closing_line(report), HasSubstr("the last step had only zero gradients"));
  const json whole = merged(report_of(0), {{"rank-0", report, ""}});
  EXPECT_EQ(show::problem(whole), "");
  EXPECT_EQ(whole["watched"]["zero_gradients"], 1);
}

TEST(ClosingLine, SaysTheDurationInAFittingUnit) {
  json report = report_of(5);
  for (const auto& [seconds, words] : std::vector<std::pair<double, const char*>>{
           {9.96, " in 10 s,"}, {119.4, " in 119 s,"}, {4500, " in 75 min,"}, {18720, " in 5.2 h,"}}) {
    report["seconds"] = seconds;
    EXPECT_THAT(closing_line(report), HasSubstr(words));
  }
  report.erase("seconds");
  EXPECT_EQ(closing_line(report), "finitude: 5 steps watched, 20 gradients scanned, all finite");
}

TEST_F(Folder, MembersListRanksFirstAndWhatIsMissing) {
  put("rank-10/report.json", report_of(4, {}, 11).dump());
  put("rank-2/report.json", "no JSON");
  put("rank-2/killed.json", R"({"signal": "SIGKILL"})");
  put("pid-7/unwatched.json", R"({"reason": "no torch"})");
  put("pid-x/report.json", "{}");
  const std::vector<Member> found = members(path_);
  std::vector<std::string> labels;
  for (const Member& member : found)
    labels.push_back(label_of(member) + (member.missing.empty() ? "" : ": " + member.missing));
  EXPECT_THAT(labels, ElementsAre("rank 2: killed by SIGKILL", "rank 10", "process 7: no torch"));
}

TEST_F(Folder, AKilledRankIsCountedAndReported) {
  json report = report_of(4);
  report["under_way"] = {{"pid", 1}};
  put("rank-0/report.json", report.dump());
  put("rank-0/killed.json", R"({"signal": "SIGKILL"})");
  const json whole = merged(report_of(0), members(path_));
  EXPECT_EQ(show::problem(whole), "");
  EXPECT_FALSE(whole.contains("under_way"));
  EXPECT_EQ(whole["watched"]["steps"], 4);
  put("rank-1/report.json", report.dump());
  put("rank-1/killed.json", R"({"signal": "SIGTERM"})");
  EXPECT_EQ(merged(report_of(0), members(path_))["reason"], "rank 0 was killed by SIGKILL after 0 steps");
  report.erase("under_way");
  put("rank-0/report.json", report.dump());
  EXPECT_EQ(merged(report_of(0), members(path_))["reason"],
            "rank 1 was killed by SIGTERM after 0 steps; rank 0 wrote its report after 4 steps");
  EXPECT_EQ(whole["advisories"][0]["text"], "rank 0 was killed by SIGKILL after 0 steps");
  EXPECT_EQ(whole["outcome"], "killed");
  EXPECT_EQ(whole["reason"], whole["advisories"][0]["text"]);
  EXPECT_THAT(closing_line(whole), HasSubstr("16 gradients scanned, rank 0 was killed by SIGKILL after 0 steps"));
  EXPECT_THAT(closing_line(whole), Not(HasSubstr("all finite")));
}

TEST(Checkpoints, TheLastGoodOneIsNamed) {
  const auto wrote = [](std::uint64_t bad, const json& last_good) {
    json report = report_of(5);
    report["checkpoints"] = {{"written", 3}, {"bad", bad}, {"after_onset", 0}, {"last_good", last_good}};
    return report;
  };
  const json early = wrote(0, {{"checkpoint", "a.pt"}, {"step", 1}});
  const json late = wrote(1, {{"checkpoint", "b.pt"}, {"step", 4}});
  EXPECT_EQ(show::problem(late), "");
  EXPECT_THAT(closing_line(early), HasSubstr("all finite, last good checkpoint a.pt"));
  EXPECT_THAT(closing_line(late), HasSubstr("1 bad checkpoint, last good checkpoint b.pt"));
  EXPECT_THAT(closing_line(wrote(3, nullptr)), HasSubstr("3 bad checkpoints, no good checkpoint"));
  const json whole = merged(report_of(0), {{"rank-0", late, ""}, {"rank-1", early, ""}, {"rank-2", report_of(5), ""}});
  EXPECT_EQ(show::problem(whole), "");
  EXPECT_EQ(whole["checkpoints"]["written"], 6);
  EXPECT_EQ(whole["checkpoints"]["last_good"]["checkpoint"], "b.pt");
  EXPECT_FALSE(merged(report_of(0), {{"rank-0", report_of(5), ""}}).contains("checkpoints"));
}

TEST(Merged, RanksTakeTheirStepsTogether) {
  const std::vector<Member> two = {
      {"rank-0", report_of(10, {}, 2), ""}, {"rank-1", report_of(9, {}, 2), ""}, {"pid-3", report_of(3), ""}};
  const json whole = merged(report_of(0), two);
  EXPECT_EQ(whole["watched"]["steps"], 13);
  EXPECT_EQ(whole["watched"]["gradients_scanned"], 88);
  EXPECT_EQ(whole["watched"]["ranks"], 2);
  EXPECT_EQ(whole["outcome"], "clean");
}

TEST(Merged, AReceiverNamesTheRankOfTheBirth) {
  Alarm received = alarm_at(6, 0), made = alarm_at(6, 1);
  received.cause.name = "other-rank";
  received.fix.emplace().text = "look at the others";
  made.births.push_back(bare_birth("forward", "aten::log"));
  made.births[0]["file"] = "dir/model.py";
  made.births[0]["line"] = 9;
  const json whole = merged(
      report_of(0), {{"rank-0", report_of(7, {alarm_at(8), received}), ""}, {"rank-1", report_of(7, {made}), ""}});
  EXPECT_EQ(whole["alarms"][0]["rank"], 1);
  EXPECT_EQ(whole["alarms"][1]["cause"]["text"], "the value came from rank 1, where aten::log made it at model.py:9");
  EXPECT_EQ(whole["alarms"][1]["fix"]["line"], 9);
  EXPECT_EQ(whole["alarms"][2]["step"], 8);
}

// Which of them is in the group of its exchange is not known.
TEST(Merged, AReceiverNamesEachRankThatMayHaveSent) {
  const auto with_birth = [](int rank, const char* phase) {
    Alarm alarm = alarm_at(6, rank);
    alarm.births.push_back(bare_birth(phase, "aten::log"));
    alarm.births[0]["file"] = "t.py";
    alarm.births[0]["line"] = 10 + rank;
    return alarm;
  };
  Alarm received = with_birth(0, "communication"), followed = alarm_at(6, 3);
  received.cause.name = followed.cause.name = "other-rank";
  followed.cause.text = "rank 2 found it";
  received.fix.emplace().text = "look at the others";
  const json whole = merged(report_of(0), {{"rank-0", report_of(7, {received}), ""},
                                           {"rank-1", report_of(7, {with_birth(1, "forward")}), ""},
                                           {"rank-2", report_of(7, {with_birth(2, "forward")}), ""},
                                           {"rank-3", report_of(7, {followed}), ""}});
  EXPECT_EQ(show::problem(whole), "");
  EXPECT_EQ(whole["alarms"][2]["cause"]["text"], "the value came from one of ranks 1, 2");
  EXPECT_EQ(whole["alarms"][2]["fix"]["text"], "see the births on ranks 1, 2");
  EXPECT_EQ(whole["alarms"][2]["fix"]["line"], 0);
  EXPECT_EQ(whole["alarms"][3]["cause"]["text"], "rank 2 found it");
}

// Rank 0 received; ranks 1 and 2 have births of their own, at the same step.
std::string sender_of(const json& received, const json& given_by_2, const json& of_3 = nullptr) {
  const auto report = [](int rank, const char* phase, const json& exchanges) {
    Alarm alarm = alarm_at(6, rank);
    alarm.births.push_back(bare_birth(phase, "aten::log"));
    if (std::string(phase) == "communication") alarm.cause.name = "other-rank";
    if (!exchanges.is_null()) alarm.births[0]["exchanges"] = exchanges;
    return report_of(7, {alarm});
  };
  std::vector<Member> ranks = {{"rank-0", report(0, "communication", received), ""},
                               {"rank-1", report(1, "forward", nullptr), ""},
                               {"rank-2", report(2, "forward", given_by_2), ""}};
  if (!of_3.is_null()) ranks.push_back({"rank-3", report(3, "communication", of_3), ""});
  const json whole = merged(report_of(0), ranks);
  EXPECT_EQ(show::problem(whole), "");
  for (const json& alarm : whole["alarms"])
    if (alarm["rank"] == 0)
      return alarm["cause"]["text"].get<std::string>().substr(std::strlen("the value came from "));
  return "";
}

TEST(Merged, TheSenderIsInTheGroupOfTheExchange) {
  const auto exchange = [](const char* group, int number, std::vector<int> ranks) {
    return json::array({{{"group", group}, {"number", number}, {"ranks", ranks}}});
  };
  const json of_all = exchange("0", 4, {0, 1, 2}), of_two = exchange("7", 1, {0, 2});
  EXPECT_THAT(sender_of(of_two, nullptr), HasSubstr("rank 2, whose loss"));
  EXPECT_EQ(sender_of(of_all, nullptr), "one of ranks 1, 2");
  EXPECT_EQ(sender_of(of_all, exchange("0", 3, {0, 1, 2})), "one of ranks 1, 2");
  EXPECT_THAT(sender_of(of_all, of_all), HasSubstr("rank 2, whose loss"));
  json from_1 = of_all;
  from_1[0]["root"] = 1;
  EXPECT_THAT(sender_of(from_1, of_all), HasSubstr("rank 1, whose loss"));
  // By way of rank 3, which received it itself.
  EXPECT_THAT(sender_of(exchange("8", 0, {0, 3}), nullptr, exchange("9", 0, {3, 2})), HasSubstr("rank 2, whose loss"));
  EXPECT_EQ(sender_of(exchange("8", 0, {0, 3}), nullptr, exchange("8", 0, {0, 3})), "one of ranks 1, 2");
}

TEST(Answer, RefusesWhatIsNoQuestion) {
  for (const char* question :
       {"", "{}", "[]", R"({"what": 1})", R"({"what": "nothing"})", R"({"what": "merged", "own": 3})",
        R"({"what": "html", "report": {}})", R"({"what": "closing_line", "report": [], "unlisted": 0})"}) {
    EXPECT_FALSE(answer(question, "").ok()) << question;
  }
  EXPECT_EQ(*answer(R"({"what": "members"})", "/nowhere"), "[]");
}

}  // namespace
}  // namespace finitude::incident
