// What the recorder leaves on disk, and who reads it again.
#include <torch/optim/adam.h>
#include <unistd.h>

#include <fstream>

#include "finitude/capsule.h"
#include "finitude/recorder.h"
#include "finitude/replay.h"
#include "recorder/testing_torch.h"

namespace finitude {
namespace {

// As AlwaysBad, but its loss is finite: of each kind a step is run again where training continues.
struct BadGradient {
  at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd{std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1)};
  at::Tensor operator()() {
    sgd.zero_grad();
    at::Tensor loss = at::sqrt((w * 0).sum());
    loss.backward();
    return loss;
  }
};

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
  EXPECT_TRUE(std::filesystem::exists(path + "/statistics.bin"));
  EXPECT_GT(again->outcomes.size(), net.parameters().size());
  EXPECT_TRUE(std::filesystem::exists(recorder.folder() + "/report.json"));
  EXPECT_TRUE(std::filesystem::exists(recorder.folder() + "/report.html"));
  EXPECT_FALSE(replay_capsule(path + "-of-nobody").ok());
}

TEST_F(RecorderTest, RedactedCapsuleHoldsNoValuesAndSaysSo) {
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

TEST_F(RecorderTest, CapsuleIsWrittenWhileTrainingContinues) {
  RecorderOptions skips = options();
  skips.on_alarm = OnAlarm::kSkip;
  std::string path, folder;
  {
    Net net;
    torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
    Recorder recorder(skips);
    recorder.watch(adam, net);
    training(net, [&](int, const auto& closure) { return recorder.step(adam, closure).status.ok(); });
    ASSERT_TRUE(recorder.finish().ok());
    path = alarm_of(recorder).capsule;
    folder = recorder.folder();
    EXPECT_EQ(recorder.report_json().find("capsule_pending"), std::string::npos);
  }
  ASSERT_FALSE(path.empty());
  const Result<Capsule> capsule = read_capsule(path);
  ASSERT_TRUE(capsule.ok()) << capsule.why();
  EXPECT_EQ(capsule->replay, "identical") << "by finitude-replay, or before it was written";
  EXPECT_TRUE(std::filesystem::exists(path + "/statistics.bin"));
  const Result<Replay> again = replay_capsule(path);
  ASSERT_TRUE(again.ok()) << again.why();
  EXPECT_EQ(again->verdict, Replay::Verdict::kIdentical) << again->text;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
}

TEST_F(RecorderTest, FailedCapsuleWriteIsReported) {
  RecorderOptions skips = options();
  skips.on_alarm = OnAlarm::kSkip;
  std::string said;
  skips.say = [&](std::string_view text) { said += text; };
  Recorder recorder(skips);
  AlwaysBad first;
  (void)recorder.step(first.sgd, std::ref(first));
  recorder.forget(first.sgd);
  const std::string folder = recorder.folder();
  while (alarm_of(recorder).capsule_pending) usleep(1000);
  std::filesystem::remove_all(folder);
  std::ofstream(folder) << "no folder any more";
  BadGradient second;
  EXPECT_TRUE(recorder.step(second.sgd, std::ref(second)).status.ok());
  (void)recorder.finish();
  const Result<Report> report = recorder.report();
  ASSERT_TRUE(report.ok()) << report.why();
  ASSERT_EQ(report->alarms.size(), 2u);
  EXPECT_FALSE(report->alarms[0].capsule.empty());
  EXPECT_TRUE(report->alarms[1].capsule.empty());
  EXPECT_NE(said.find("leaves no capsule: its folder "), std::string::npos) << said;
  EXPECT_NE(recorder.report_json().find("a capsule of step 0: its folder "), std::string::npos);
}

TEST_F(RecorderTest, SeveralAtOnceAndOnlySoManyStay) {
  RecorderOptions skips = options();
  skips.on_alarm = OnAlarm::kSkip;
  skips.capsules = 1;
  Recorder recorder(skips), other(skips);
  AlwaysBad loss, loss_of_other;
  BadGradient gradient;
  (void)recorder.step(loss.sgd, std::ref(loss));
  (void)other.step(loss_of_other.sgd, std::ref(loss_of_other));
  (void)recorder.step(gradient.sgd, std::ref(gradient));
  ASSERT_TRUE(recorder.finish().ok());
  ASSERT_TRUE(other.finish().ok());
  EXPECT_TRUE(read_capsule(alarm_of(other).capsule).ok());
  std::size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(recorder.folder())) folders += entry.is_directory();
  EXPECT_EQ(folders, 1u);
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
    testing::internal::CaptureStderr();
    EXPECT_TRUE(recorder.finish().ok());
    EXPECT_EQ(testing::internal::GetCapturedStderr().find("warning"), std::string::npos);
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
  setenv("FINITUDE_ON_ALARM", "skip", 1);
  setenv("FINITUDE_REDACT", "7", 1);
  EXPECT_FALSE(options_from_environment().ok());
  setenv("FINITUDE_REDACT", "1", 1);
  EXPECT_TRUE(options_from_environment()->redact);
  unsetenv("FINITUDE_REDACT");
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
