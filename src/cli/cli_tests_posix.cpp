#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/process_posix.h"
#include "capture/capsule.h"
#include "capture/step_statistics.h"
#include "capture/tape_file.h"
#include "capture/testing.h"
#include "capture/testing_trace.h"
#include "cli/nearest.h"
#include "cli/testing_posix.h"
#include "record/ring_posix.h"
#include "show/sample_reports.h"

namespace finitude::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Nearest, Distance) {
  EXPECT_EQ(edit_distance("report", "report"), 0);
  EXPECT_EQ(edit_distance("reprot", "report"), 1);  // a swap of neighbours
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, OnlyWhatIsNear) {
  EXPECT_EQ(nearest("--htm", {"--json", "--html"}), "--html");
  EXPECT_EQ(nearest("dmup", {"report", "dump", "list"}), "dump");
  EXPECT_EQ(nearest("zebra", {"report", "dump", "list"}), "");
  EXPECT_EQ(nearest(std::string(100000, 'x'), {"report"}), "");
}

TEST(Usage, HelpTeachesAndVersionIsShort) {
  const Ran help = ran({"--help"});
  EXPECT_EQ(help.code, kDone);
  for (const char* part : {"finitude-offline list", "--html page.html", "Exit codes", "report", "dump", "list"}) {
    EXPECT_THAT(help.out, HasSubstr(part));
  }
  EXPECT_EQ(ran({"report", "--help"}).code, kDone);
  EXPECT_THAT(ran({"--version"}).out, StartsWith("finitude "));
}

TEST(Usage, ErrorsNameWhatWasMeant) {
  for (const auto& [args, said] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"reprot", "x"}, "no command reprot; did you mean report?"},
           {{"report", "--htm=x", "f"}, "report has no option --htm=x; did you mean --html?"},
           {{"report", "f", "--jsn"}, "did you mean --json?"},
           {{"--verzion"}, "did you mean --version?"},
           {{"zebra"}, "no command zebra; there is report, dump, list, diff"},
           {{"report", "f", "--bogus"}, "there is --help, --html, --json, --no-colour, --no-color, --quiet"},
           {{"list", "a", "b"}, "list takes one path; b is one too many"},
           {{"list", "--bogus"}, "list has no option --bogus"},
           {{"diff", "a"}, "diff needs the two files to compare"},
           {{"diff", "a", "b", "c"}, "diff takes two paths; c is one too many"},
           {{"dump", "a", "b"}, "dump takes one path; b is one too many"},
           {{"report", "f", "--html"}, "--html"}}) {
    const Ran got = ran(args);
    EXPECT_EQ(got.code, kUsage) << said;
    EXPECT_THAT(got.err, HasSubstr(said));
    EXPECT_THAT(got.out, IsEmpty());
  }
  EXPECT_EQ(ran({}).code, kUsage);
}

TEST(Usage, WordsOfTheCommandLineAreMadePrintable) {
  EXPECT_THAT(ran({"\x1b[2J"}).err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(ran({"report", "\x1b]0;x\x07"}).err, Not(HasSubstr("\x1b")));
}

TEST_F(Folder, ReportAsTextPageAndJson) {
  const Ran text = ran({"report", sample_path("loss_forward")});
  EXPECT_EQ(text.code, kDone);
  EXPECT_THAT(text.out, StartsWith("finitude: step 412 stopped before the optimizer"));
  const std::string page = (path_ / "report.html").string();
  const Ran html = ran({"report", sample_path("loss_forward"), "--html", page});
  EXPECT_EQ(html.code, kDone);
  EXPECT_THAT(html.out, IsEmpty());
  EXPECT_TRUE(fs::exists(page));
  EXPECT_FALSE(fs::exists(page + ".partial"));
  const Ran json = ran({"report", "--json", sample_path("hostile")});
  EXPECT_EQ(nlohmann::json::parse(json.out), show::sample("hostile"));
  for (const char c : json.out) ASSERT_LT(static_cast<unsigned char>(c), 0x7f);
  EXPECT_EQ(ran({"report", sample_path("clean"), "--html", (path_ / "no" / "where.html").string()}).code, kCannotHere);
}

TEST_F(Folder, ReportOfARunsFolder) {
  put("run/report.json", show::sample("clean").dump());
  EXPECT_EQ(ran({"report", (path_ / "run").string()}).code, kDone);
  EXPECT_EQ(ran({"report", path_.string()}).code, kUnreadable);
}

TEST_F(Folder, UnreadableAndCorrupt) {
  EXPECT_EQ(ran({"report", (path_ / "none.json").string()}).code, kUnreadable);
  const std::vector<std::pair<std::string, const char*>> corrupt = {
      {"", "is not JSON"},
      {"{", "is not JSON"},
      {"{\"schema\": NaN}", "is not JSON"},
      {"[1]", "not a report"},
      {"{\"schema\": 9}", "schema 9"},
      {std::string(100000, '['), "is not JSON"},
      {std::string(100, '[') + std::string(100, ']'), "nested deeper than 32"},
      {"\xff\xfe{}", "is not JSON"},
      {"{\"schema\": 1e999}", "is not JSON"},
      {"{\"schema\":1,\"outcome\":\"clean\"}", "watched is missing"}};
  for (const auto& [bytes, said] : corrupt) {
    const Ran got = ran({"report", put("bad.json", bytes)});
    EXPECT_EQ(got.code, kUnreadable) << said;
    EXPECT_THAT(got.err, HasSubstr(said));
  }
}

TEST_F(Folder, DumpOfATrace) {
  const Ran got = ran({"dump", sample_path("trace")});
  EXPECT_EQ(got.code, kDone);
  std::istringstream lines(got.out);
  std::vector<nlohmann::json> ops;
  for (std::string line; std::getline(lines, line);) ops.push_back(nlohmann::json::parse(line));
  EXPECT_EQ(nlohmann::json(ops), show::sample("trace")["trace"]["ops"]);
  const Ran none = ran({"dump", sample_path("clean")});
  EXPECT_EQ(none.code, kUnreadable);
  EXPECT_THAT(none.err, HasSubstr("--level trace"));
}

TEST_F(Folder, DumpOfJsonLines) {
  const Ran good = ran({"dump", put("ops.jsonl", "{\"op\":\"a\"}\n\n{\"op\": \"\\u001b\"}")});
  EXPECT_EQ(good.code, kDone);
  EXPECT_EQ(good.out, "{\"op\":\"a\"}\n{\"op\":\"\\u001b\"}\n");
  const Ran bad = ran({"dump", put("bad.jsonl", "{\"op\":\"a\"}\n{\"x\":NaN}\n")});
  EXPECT_EQ(bad.code, kUnreadable);
  EXPECT_THAT(bad.err, HasSubstr("line 2"));
  EXPECT_EQ(ran({"dump", put("no.jsonl", "{\"op\":1}\n[2]\n")}).code, kUnreadable);
}

TEST_F(Folder, DiffOfTwoTraces) {
  const std::string path = sample_path("trace");
  const Ran same = ran({"diff", path, path});
  EXPECT_EQ(same.code, kDone);
  EXPECT_THAT(same.out, HasSubstr("no difference"));
  nlohmann::json other = show::sample("trace");
  other["trace"]["ops"][0]["outputs"][0]["max"] = 5.0;
  other["trace"]["ops"][0]["outputs"][0]["absmax"] = 5.0;
  const Ran parted = ran({"diff", path, put("other.json", other.dump()), "--json"});
  EXPECT_EQ(parted.code, kFindingIsBad);
  const auto document = nlohmann::json::parse(parted.out);
  EXPECT_EQ(document["verdict"], "divergence");
  EXPECT_EQ(document["divergence"]["kind"], "kernel");
  EXPECT_EQ(document["divergence"]["at"]["a"]["op"], "aten::linear");
}

TEST_F(Folder, OperationsOfACapsule) {
  capture::Tape tape = capture::whole_tape();
  for (const char* name : {"with", "without"}) {
    tape.statistics = name == std::string("with") ? capture::write_statistics(capture::sample_trace(), false) : "";
    ASSERT_EQ(capture::write_capsule((path_ / name).string(), tape, {{"step", 3}}, {}).why(), "");
  }
  const std::string with = (path_ / "with").string(), without = (path_ / "without").string();
  const Ran got = ran({"dump", with});
  EXPECT_EQ(got.code, kDone);
  const auto first = nlohmann::json::parse(got.out.substr(0, got.out.find('\n')));
  EXPECT_EQ(first["op"], "aten::log");
  EXPECT_EQ(first["inputs"][0]["nan"], 1);
  const Ran none = ran({"dump", without});
  EXPECT_EQ(none.code, kUnreadable);
  EXPECT_THAT(none.err, HasSubstr("holds no statistics of its operations"));
  // Nothing is there to play tapes with: what was traced is compared.
  const Ran same = ran({"diff", with, with, "--json"});
  EXPECT_EQ(same.code, kDone);
  EXPECT_EQ(nlohmann::json::parse(same.out)["alignment"]["pairs"], 2);
  EXPECT_TRUE(nlohmann::json::parse(same.out)["by_statistics"].get<bool>());
  const Ran unknown = ran({"diff", with, without});
  EXPECT_EQ(unknown.code, kCannotHere);
  EXPECT_THAT(unknown.err, HasSubstr("needs torch"));
}

TEST_F(Folder, DiffSaysWhatItCannotCompare) {
  const std::string path = sample_path("trace");
  EXPECT_EQ(ran({"diff", path, (path_ / "none.json").string()}).code, kUnreadable);
  EXPECT_EQ(ran({"diff", path, put("step/capsule.json", "{}").substr(0, path_.string().size() + 5)}).code, kUnreadable);
  const Ran clean = ran({"diff", sample_path("clean"), path});
  EXPECT_EQ(clean.code, kCannotHere);
  EXPECT_THAT(clean.err, HasSubstr("holds no trace"));
  const Ran tape = ran({"diff", path, put("tape.bin", capture::write_tape(capture::sample_tape()))});
  EXPECT_EQ(tape.code, kCannotHere);
  EXPECT_THAT(tape.err, HasSubstr("needs torch"));
  EXPECT_EQ(ran({"diff", put("a.zip", "PK\x03\x04"), path}).code, kUnreadable);
}

TEST_F(Folder, ListIsNewestFirstAndOneLineEach) {
  put("20260101-a/report.json", show::sample("loss_forward").dump());
  put("20260102-b/report.json", show::sample("clean").dump());
  put("20260102-b/step-000001/capsule.json", "{}");
  put("20260103-c/report.json", show::sample("hostile").dump());
  put("20260104-d/report.json", "{");
  put("20260105-e/rank-0/report.json", show::sample("loss_forward").dump());
  put("20260106-f/run.json", "{}");
  put("other/notes.json", "{}");
  const Ran got = ran({"list", path_.string() + "/"});
  EXPECT_EQ(got.code, kDone);
  std::istringstream lines(got.out);
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  ASSERT_EQ(all.size(), 6u) << got.out;
  EXPECT_EQ(all[0], "20260106-f  killed          0 steps");
  EXPECT_THAT(all[1], StartsWith("20260105-e  killed          0 steps  1 alarm"));
  EXPECT_EQ(all[2], "20260104-d  unknown         0 steps  report.json cannot be read");
  EXPECT_THAT(all[3], HasSubstr("\\x1b"));
  EXPECT_EQ(all[4], "20260102-b  clean         413 steps  1 capsule");
  EXPECT_THAT(all[5], StartsWith("20260101-a  alarm         413 steps  1 alarm"));
  EXPECT_THAT(got.out, Not(HasSubstr("\x1b")));
}

TEST_F(Folder, ListCountsTheWarningsOfARun) {
  nlohmann::json report = show::sample("clean");
  report["warnings"] = nlohmann::json::array({{{"step", 3}}, {{"step", 9}}});
  put("a-ended/report.json", report.dump());
  put("b-killed/run.json", "{}");
  put("b-killed/events.jsonl", R"({"kind": "warning", "what": "spike", "step": 3}
{"kind": "checkpoint", "path": "warning"}
{"kind": "warn)");
  EXPECT_EQ(ran({"list", path_.string()}).out,
            "b-killed  killed          0 steps  1 warning\na-ended   clean         413 steps  2 warnings\n");
  const nlohmann::json listed = nlohmann::json::parse(ran({"list", "--json", path_.string()}).out);
  EXPECT_EQ(listed[0]["warnings"], 1);
  EXPECT_EQ(listed[1]["warnings"], 2);
}

TEST_F(Folder, ReportOfAContinuedRunSaysItsState) {
  nlohmann::json report = show::sample("loss_forward");
  report["alarms"][0]["capsule"] = (path_ / "run" / "step-000412").string();
  report["alarms"][0]["capsule_pending"] = true;
  const std::string machine = base::this_machine();
  const auto start = base::process_state(getpid());
  ASSERT_TRUE(start && machine != "0");
  report["under_way"] = {{"pid", getpid()}, {"start", start->start}, {"machine", machine}};
  const std::string file = put("run/report.json", report.dump());
  const auto shown = [&] { return nlohmann::json::parse(ran({"report", "--json", (path_ / "run").string()}).out); };
  EXPECT_EQ(shown()["outcome"], "running");
  EXPECT_EQ(shown()["alarms"][0]["capsule_pending"], true);
  EXPECT_THAT(ran({"list", path_.string()}).out, StartsWith("run  running "));
  for (const nlohmann::json& other :
       {nlohmann::json{{"pid", getpid()}, {"start", start->start + 1}, {"machine", machine}},
        nlohmann::json{{"pid", getpid()}, {"start", start->start}, {"machine", "elsewhere"}},
        nlohmann::json{{"pid", 1u << 31}, {"machine", machine}}}) {
    report["under_way"] = other;
    put("run/report.json", report.dump());
    EXPECT_EQ(shown()["outcome"], "killed") << other;
    EXPECT_EQ(shown()["alarms"][0]["capsule"], nullptr);
    EXPECT_FALSE(shown()["alarms"][0].contains("capsule_pending"));
  }
  report["alarms"][0].erase("capsule_pending");  // newer ones have pushed it out
  put("run/report.json", report.dump());
  EXPECT_EQ(shown()["alarms"][0]["capsule"], nullptr);
  EXPECT_THAT(shown()["alarms"][0]["rerun_text"].get<std::string>(), HasSubstr("removed by --capsules"));
}

TEST_F(Folder, ListAndReportNameTheJob) {
  put("run/report.json", show::sample("clean").dump());
  put("run/run.json", R"({"job": {"slurm_job": "17", "slurm_nodes": "n[1-2]", "slurm_restarts": "1", "x": "y"}})");
  for (const char* one : {"0", "2", "1"})  // three starts of rank 0, in no order
    put("run/rank-0-9" + std::string(one) + "/run.json",
        R"({"job": {"elastic_run": "r", "elastic_most_restarts": "3", "elastic_restarts": ")" + std::string(one) +
            "\"}}");
  const std::string text = "job: SLURM job 17 on n[1-2], restart 1; torchelastic run r, restart 2 of 3\n";
  EXPECT_THAT(ran({"report", (path_ / "run").string()}).out, HasSubstr("\n" + text));
  EXPECT_THAT(ran({"list", path_.string()}).out, HasSubstr("SLURM job 17\n"));
  const nlohmann::json listed = nlohmann::json::parse(ran({"list", "--json", path_.string()}).out);
  EXPECT_EQ(listed[0]["job"]["elastic_restarts"], "2");
  EXPECT_FALSE(listed[0]["job"].contains("x"));
  put("run/run.json", R"({"job": {"slurm_job": "\u001b[2J"}})");
  EXPECT_THAT(ran({"report", (path_ / "run").string()}).out, Not(HasSubstr("\x1b[2J")));
  put("torchrun/run.json", R"({"job": {"elastic_run": "none", "elastic_restarts": "0"}})");
  EXPECT_THAT(ran({"report", (path_ / "torchrun").string()}).out, Not(HasSubstr("job:")));
  put("torchrun/run.json", R"({"job": {"elastic_run": "none", "elastic_restarts": "2"}})");
  EXPECT_THAT(ran({"report", (path_ / "torchrun").string()}).out, HasSubstr("job: torchelastic, restart 2\n"));
  put("other/run.json", R"({"job": ["slurm_job"]})");
  EXPECT_THAT(ran({"report", (path_ / "other").string()}).out, Not(HasSubstr("job:")));
}

TEST_F(Folder, ReportOfARunWithoutOne) {
  put("run/run.json", "{\"process\": {\"pid\": 7, \"machine\": \"elsewhere\"}}");
  EXPECT_EQ(ran({"report", (path_ / "run").string()}).out,
            (path_ / "run").string() + ": process 7 ended before it could write a report; it took no step\n");
  {
    record::RingWriter ring((path_ / "run" / "steps.ring").string(), 8);
    for (std::uint64_t step = 0; step < 12; ++step)
      ring.push({.step = step, .flags = step == 11 ? 0u : record::kStepApplied, .loss = -std::nan(""), .lr = 0.5});
  }
  const Ran got = ran({"report", (path_ / "run").string()});
  EXPECT_EQ(got.code, kDone);
  EXPECT_THAT(got.out, HasSubstr("12 steps were recorded, the last of them:\n  step 7   loss nan   "));
  EXPECT_THAT(got.out, HasSubstr("not applied\n"));
  EXPECT_THAT(ran({"list", path_.string()}).out, StartsWith("run  killed         12 steps  step 11\n"));
  put("several/rank-10/report.json", show::sample("clean").dump());
  put("several/rank-2/report.json", show::sample("loss_forward").dump());
  put("several/pid-x/report.json", "{}");
  const Ran several = ran({"report", (path_ / "several").string()});
  EXPECT_EQ(several.code, kDone);
  EXPECT_THAT(several.out, HasSubstr("log-of-zero"));
  put("several/rank-3/report.json", "{");
  EXPECT_EQ(ran({"report", (path_ / "several").string()}).code, kUnreadable);
}

TEST_F(Folder, WhatFollowsDashesIsAPath) {
  const fs::path before = fs::current_path();
  fs::current_path(path_);
  put("-x/report.json", show::sample("clean").dump());
  put("list/report.json", show::sample("clean").dump());
  EXPECT_EQ(ran({"report", "--", "-x"}).code, kDone);
  EXPECT_EQ(ran({"report", "list"}).code, kDone);
  EXPECT_EQ(ran({"report", "-x"}).code, kUsage);
  fs::current_path(before);
}

TEST_F(Folder, CapsuleIsPackedAndUnpacked) {
  ASSERT_EQ(capture::write_capsule((path_ / "whole").string(), capture::whole_tape(), {{"step", 3}}, {}).why(), "");
  const std::string folder = (path_ / "whole").string(), packed = folder + ".capsule.zip";
  EXPECT_EQ(ran({"pack", folder + "/"}).out, packed + "\n");
  const Ran taken = ran({"unpack", packed});
  EXPECT_EQ(taken.code, kUnreadable);
  EXPECT_EQ(taken.err, "finitude: " + packed + " is not unpacked: " + folder + " is there already\n");
  EXPECT_EQ(ran({"unpack", packed, folder + "2"}).out, folder + "2\n");
  put("whole/tape.bin", "no");
  const Ran damaged = ran({"pack", folder, packed});
  EXPECT_EQ(damaged.code, kUnreadable);
  EXPECT_THAT(damaged.err, HasSubstr("tape.bin is damaged"));
  EXPECT_EQ(ran({"pack", folder + "2", (path_ / "no/a.zip").string()}).code, kCannotHere);
  EXPECT_EQ(ran({"unpack", packed, "x", "--max-mb", "0"}).code, kUsage);
}

TEST_F(Folder, ListOfNothingSaysWhatWasLookedAt) {
  const std::string none = (path_ / "none").string();
  const Ran empty = ran({"list", path_.string()});
  EXPECT_EQ(empty.code, kDone);
  EXPECT_THAT(empty.out, IsEmpty());
  EXPECT_THAT(ran({"list", "--quiet", path_.string()}).err, IsEmpty());
  EXPECT_EQ(ran({"list", "--json", path_.string()}).out, "[]\n");
  const Ran missing = ran({"list", none});
  EXPECT_EQ(missing.code, kUnreadable);
  for (const Ran& one : {empty, missing}) {
    EXPECT_THAT(one.err, HasSubstr("no run found: looked in " + path_.string()));
    EXPECT_THAT(one.err, HasSubstr("run.json"));
    EXPECT_THAT(one.err, HasSubstr("finitude list DIR"));
  }
  EXPECT_THAT(missing.err, HasSubstr("none, which does not exist"));
}

TEST_F(Folder, ListAsJsonAndAsPaths) {
  put("20260101-a/report.json", show::sample("loss_forward").dump());
  put("20260102-b/report.json", "{");
  put("20260103-c/run.json", "{}");
  put("20260103-c/step-000001/capsule.json", "{}");
  const auto all = nlohmann::json::parse(ran({"list", "--json", path_.string()}).out);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["state"], "killed");
  EXPECT_EQ(all[0]["outcome"], nullptr);
  EXPECT_EQ(all[0]["capsules"], 1);
  EXPECT_EQ(all[1]["state"], "unknown");
  EXPECT_EQ(all[2]["run"], "20260101-a");
  EXPECT_EQ(all[2]["path"], (path_ / "20260101-a").string());
  EXPECT_EQ(all[2]["state"], "finished");
  EXPECT_EQ(all[2]["outcome"], "alarm");
  EXPECT_EQ(all[2]["steps"], 413);
  EXPECT_EQ(all[2]["alarms"], 1);
  EXPECT_EQ(all[2]["seconds"], show::sample("loss_forward")["seconds"]);
  EXPECT_EQ(all[2]["started"], show::sample("loss_forward")["started"]);
  const std::string at = path_.string() + "/";
  EXPECT_EQ(ran({"list", "-q", at}).out, at + "20260103-c\n" + at + "20260102-b\n" + at + "20260101-a\n");
}

TEST_F(Folder, ListFollowsTheTerminal) {
  put("20260101-a/report.json", show::sample("loss_forward").dump());
  const auto listed = [&](const Screen& screen) {
    std::ostringstream out, err;
    run("finitude-offline", {"list", path_.string()}, out, err, screen);
    return out.str();
  };
  const std::string narrow = listed({.terminal = true, .width = 40});
  EXPECT_EQ(narrow.size(), 41u) << narrow;
  EXPECT_THAT(narrow, ::testing::EndsWith("...\n"));
  EXPECT_GT(listed({}).size(), 41u);
}

TEST_F(Folder, WithoutAPathTheNewestIsTaken) {
  put("runs/20260101-a/report.json", show::sample("trace").dump());
  put("runs/20260102-b/report.json", show::sample("trace").dump());
  put("runs/20260103-c/report.json", show::sample("clean").dump());
  put("runs/zz/notes.json", "{}");
  use_runs(path_ / "runs");
  const std::string runs = (path_ / "runs").string();
  const Ran report = ran({"report", "--json"});
  EXPECT_EQ(report.code, kDone);
  EXPECT_EQ(nlohmann::json::parse(report.out), show::sample("clean"));
  EXPECT_EQ(report.err, "finitude: no path given: took the newest run, " + runs + "/20260103-c\n");
  EXPECT_THAT(ran({"report", "--quiet"}).err, IsEmpty());
  EXPECT_EQ(ran({"list"}).out, ran({"list", runs}).out);
  const Ran dump = ran({"dump"});
  EXPECT_EQ(dump.out, ran({"dump", sample_path("trace")}).out);
  EXPECT_THAT(dump.err, HasSubstr("/20260102-b\n"));
  const Ran diff = ran({"diff"});
  EXPECT_EQ(diff.code, kDone);
  EXPECT_THAT(diff.err, HasSubstr(runs + "/20260101-a and " + runs + "/20260102-b\n"));
  EXPECT_THAT(ran({"diff", "-q"}).out + ran({"diff", "-q"}).err, IsEmpty());
  EXPECT_EQ(ran({"newest", "capsule"}).code, kUnreadable);
  ASSERT_EQ(capture::write_capsule(runs + "/20260101-a/step-000007", capture::whole_tape(), {{"step", 7}}, {}).why(),
            "");
  ASSERT_EQ(capture::write_capsule(runs + "/20260101-a/step-1000000", capture::whole_tape(), {{"step", 7}}, {}).why(),
            "");
  EXPECT_EQ(ran({"newest", "capsule"}).out, runs + "/20260101-a/step-1000000" + '\0');
}

TEST_F(Folder, WithoutPathOrRunItNamesSearchedPlaces) {
  use_runs(path_ / "none");
  for (const char* word : {"report", "dump", "diff"}) {
    const Ran got = ran({word});
    EXPECT_EQ(got.code, kUnreadable) << word;
    EXPECT_THAT(got.err, HasSubstr("looked in " + (path_ / "none").string() + ", which does not exist"));
    EXPECT_THAT(got.err, HasSubstr("FINITUDE_RUNS"));
  }
}

TEST(Usage, HelpFitsInto80Columns) {
  for (const char* word : {"", "report", "dump", "list", "diff", "replay"}) {
    std::istringstream lines(
        ran(*word != '\0' ? std::vector<std::string>{word, "--help"} : std::vector<std::string>{"--help"}).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

}  // namespace
}  // namespace finitude::cli
