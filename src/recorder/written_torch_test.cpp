// What the recorder leaves on disk, and who reads it again.
#include <torch/optim/adam.h>

#include "finitude/capsule.h"
#include "finitude/recorder.h"
#include "finitude/replay.h"
#include "recorder/testing_torch.h"

namespace finitude {
namespace {

TEST_F(RecorderTest, ACapsuleIsReadAndReplaysIdentically) {
  Net net;
  torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
  Recorder recorder(options());
  recorder.watch(adam, net);
  training(net, [&](int, const auto& closure) { return recorder.step(adam, closure).status.ok(); });
  const std::string path = alarm_of(recorder).capsule;
  ASSERT_FALSE(path.empty()) << recorder.report_json();
  const Result<Capsule> capsule = read_capsule(path);
  ASSERT_TRUE(capsule.ok()) << capsule.why();
  EXPECT_EQ(capsule->step, kBadStep);
  EXPECT_EQ(capsule->replay, "identical");
  EXPECT_EQ(capsule->alarm.cause.cause_class, "log-of-zero");
  std::size_t named = 0, logs = 0;
  for (const CapsuleInput& input : capsule->inputs) named += input.kind == "parameter";
  for (const CapsuleCall& call : capsule->calls) logs += call.op == "aten::log" && call.line > 0;
  EXPECT_EQ(named, net.parameters().size());
  EXPECT_EQ(logs, 1u);
  const Result<Replay> again = replay_capsule(path);
  ASSERT_TRUE(again.ok()) << again.why();
  EXPECT_EQ(again->verdict, Replay::Verdict::kIdentical) << again->text;
  EXPECT_EQ(again->outcomes.size(), capsule->outcomes.size());
  EXPECT_GT(again->outcomes.size(), net.parameters().size());
  EXPECT_TRUE(std::filesystem::exists(recorder.folder() + "/report.json"));
  EXPECT_TRUE(std::filesystem::exists(recorder.folder() + "/report.html"));
  EXPECT_FALSE(replay_capsule(path + "-of-nobody").ok());
}

TEST_F(RecorderTest, ARedactedCapsuleHoldsNoValuesAndSaysSo) {
  AlwaysBad bad;
  RecorderOptions redacting = options();
  redacting.redact = true;
  Recorder recorder(redacting);
  EXPECT_FALSE(recorder.step(bad.sgd, std::ref(bad)).status.ok());
  const Result<Capsule> capsule = read_capsule(alarm_of(recorder).capsule);
  ASSERT_TRUE(capsule.ok()) << capsule.why();
  EXPECT_TRUE(capsule->redacted);
  EXPECT_FALSE(replay_capsule(alarm_of(recorder).capsule).ok());
}

TEST_F(RecorderTest, NothingIsWrittenWhereNothingIsAskedFor) {
  AlwaysBad bad;
  RecorderOptions quiet = options();
  quiet.runs.clear();
  {
    Recorder recorder(quiet);
    EXPECT_FALSE(recorder.step(bad.sgd, std::ref(bad)).status.ok());
    EXPECT_TRUE(recorder.folder().empty());
    EXPECT_EQ(alarm_of(recorder).cause.cause_class, "negative-domain");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(RecorderTest, OldCapsulesMakeRoom) {
  RecorderOptions two = options();
  two.capsules = 1;
  Recorder recorder(two);
  for (int i = 0; i < 3; ++i) {
    AlwaysBad bad;
    (void)recorder.step(bad.sgd, std::ref(bad));
    recorder.forget(bad.sgd);
  }
  std::size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(recorder.folder())) folders += entry.is_directory();
  EXPECT_EQ(folders, 1u);
}

TEST_F(RecorderTest, OptionsComeFromTheEnvironment) {
  setenv("FINITUDE_ON_ALARM", "skip", 1);
  setenv("FINITUDE_CAPSULE_MAX", "3", 1);
  setenv("FINITUDE_EXPERIMENTS", "0", 1);
  setenv("FINITUDE", "off", 1);
  const Result<RecorderOptions> good = options_from_environment();
  setenv("FINITUDE_ON_ALARM", "skp", 1);
  const Result<RecorderOptions> bad = options_from_environment();
  unsetenv("FINITUDE_ON_ALARM");
  unsetenv("FINITUDE_CAPSULE_MAX");
  unsetenv("FINITUDE_EXPERIMENTS");
  unsetenv("FINITUDE");
  ASSERT_TRUE(good.ok()) << good.why();
  EXPECT_EQ(good->on_alarm, OnAlarm::kSkip);
  EXPECT_EQ(good->capsule_max_bytes, std::uint64_t{3} << 20);
  EXPECT_EQ(good->experiments, 0);
  EXPECT_FALSE(good->on);
  EXPECT_FALSE(bad.ok());
  EXPECT_NE(bad.why().find("skp"), std::string::npos);
}

}  // namespace
}  // namespace finitude
