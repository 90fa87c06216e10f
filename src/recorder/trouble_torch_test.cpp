// What does not go as planned: a recorder that is switched off, a disk that cannot be written, optimizers that throw,
// threads.
#include <ATen/autocast_mode.h>
#include <torch/optim/adam.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "finitude/recorder.h"
#include "finitude/replay.h"
#include "recorder/testing_torch.h"

namespace finitude {
namespace {

TEST_F(RecorderTest, SwitchedOffItIsNotThere) {
  RecorderOptions off = options();
  off.on = false;
  for (const bool by_environment : {false, true}) {
    if (by_environment) setenv("FINITUDE", "0", 1);
    AlwaysBad bad, plain;
    int calls = 0;
    {
      Recorder recorder(by_environment ? options() : off);
      EXPECT_FALSE(recorder.is_on());
      recorder.watch(bad.sgd, {{"w", bad.w}});
      const StepResult result = recorder.step(bad.sgd, [&] { return ++calls, bad(); });
      EXPECT_TRUE(result.applied && !result.alarm && result.status.ok());
      EXPECT_TRUE(recorder.gate(bad.sgd, bad.w).applied);
      EXPECT_EQ(recorder.report()->outcome, "unwatched");
      EXPECT_TRUE(recorder.finish().ok());
    }
    unsetenv("FINITUDE");
    plain();
    plain.sgd.step();
    EXPECT_TRUE(same_bits({bad.w}, {plain.w}));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(said_, "");
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  }
}

TEST_F(RecorderTest, WhereNothingCanBeWrittenTrainingGoesOn) {
  std::ofstream(folder_ + "/file") << "not a folder";
  RecorderOptions nowhere = options(OnAlarm::kSkip);
  nowhere.runs = nowhere.report = folder_ + "/file/runs";
  for (const bool healthy : {false, true}) {
    said_.clear();
    Net net;
    torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
    Recorder recorder(nowhere);
    recorder.watch(adam, net);
    int steps = 0;
    training(
        net,
        [&](int i, const auto& closure) {
          EXPECT_EQ(recorder.step(adam, closure).applied, healthy || i != kBadStep);
          return ++steps, true;
        },
        healthy);
    EXPECT_EQ(steps, 10);
    EXPECT_FALSE(recorder.finish().ok());
    EXPECT_TRUE(recorder.folder().empty());
    if (!healthy) {
      const Alarm alarm = alarm_of(recorder);
      EXPECT_EQ(alarm.cause.cause_class, "log-of-zero");
      EXPECT_TRUE(alarm.capsule.empty());
    }
    std::size_t warnings = 0;
    for (std::size_t at = 0; (at = said_.find("warning", at)) != std::string::npos; ++at) ++warnings;
    EXPECT_EQ(warnings, 1u) << said_;
  }
}

class Throwing : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (std::exchange(throws, false)) throw std::runtime_error("of the optimizer");
    return SGD::step(std::move(closure));
  }
  bool throws = false;
};

TEST_F(RecorderTest, WhatAnOptimizerThrowsPassesThrough) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  Throwing optimizer(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.5));
  Recorder recorder(options(OnAlarm::kSkip));
  recorder.watch(optimizer, {{"w", w}});
  float shift = 0;
  const auto closure = [&] {
    optimizer.zero_grad();
    at::Tensor loss = at::sqrt(w + shift).sum();
    loss.backward();
    return loss;
  };
  optimizer.throws = true;
  EXPECT_THROW((void)recorder.step(optimizer, closure), std::runtime_error);
  EXPECT_TRUE(recorder.is_on());
  EXPECT_TRUE(at::equal(w.detach(), at::ones({3})));
  EXPECT_TRUE(recorder.step(optimizer, closure).applied);
  shift = -10;
  EXPECT_FALSE(recorder.step(optimizer, closure).applied);
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.optimizer, "Throwing");
  EXPECT_EQ(alarm.rerun, "persistent");
  EXPECT_EQ(alarm.cause.cause_class, "negative-domain");
}

TEST_F(RecorderTest, AutocastIsRunAgainAsItWas) {
  struct Autocast {
    Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true), at::autocast::increment_nesting(); }
    ~Autocast() {
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
  };
  torch::nn::Linear first(6, 8), second(8, 3);
  std::vector<at::Tensor> parameters = first->parameters();
  for (const auto& p : second->parameters()) parameters.push_back(p);
  torch::optim::Adam adam(parameters, torch::optim::AdamOptions(1e-2));
  Recorder recorder(options());
  const at::Tensor x = at::randn({12, 6});
  float scale = 1;
  const auto closure = [&] {
    adam.zero_grad();
    at::Tensor loss;
    {
      const Autocast here;
      const at::Tensor hidden = at::relu(first->forward(x)) * scale;
      EXPECT_EQ(hidden.scalar_type(), at::kBFloat16);
      loss = second->forward(hidden).square().mean();
    }
    loss.backward();
    return loss;
  };
  EXPECT_TRUE(recorder.step(adam, closure).applied);
  const auto before = copies(parameters);
  scale = 3e38f;
  EXPECT_FALSE(recorder.step(adam, closure).applied);
  EXPECT_TRUE(same_bits(before, parameters));
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.rerun, "persistent");
  ASSERT_FALSE(alarm.births.empty());
  EXPECT_FALSE(alarm.capsule.empty()) << recorder.report_json();
  const Result<Replay> again = replay_capsule(alarm.capsule);
  ASSERT_TRUE(again.ok()) << again.why();
  EXPECT_EQ(again->verdict, Replay::Verdict::kIdentical) << again->text;
}

// One thread of those that train side by side, each with weights and a recorder of its own.
struct Worker {
  Worker(RecorderOptions options, int seed) : recorder(std::move(options)) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    a = at::randn({5, 4}).requires_grad_();
    b = at::randn({4, 3}).requires_grad_();
    x = at::randn({16, 5});
    sgd = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{a, b}, torch::optim::SGDOptions(0.01));
    recorder.watch(*sgd, {{"a", a}, {"b", b}});
  }
  bool step(bool bad) {
    return recorder
        .step(*sgd,
              [&] {
                FINITUDE_HERE("worker");
                sgd->zero_grad();
                at::Tensor hidden = at::tanh(x.matmul(a));
                if (bad) hidden = at::sqrt(hidden - 2);
                at::Tensor loss = hidden.matmul(b).square().mean();
                loss.backward();
                return loss;
              })
        .applied;
  }

  Recorder recorder;
  at::Tensor a, b, x;
  std::unique_ptr<torch::optim::SGD> sgd;
};

TEST_F(RecorderTest, ThreadsWithOwnRecordersDoNotMix) {
  constexpr int kSteps = 60, kBad = 20;
  RecorderOptions silent = options(OnAlarm::kSkip);
  silent.say = [](std::string_view) {};
  Worker healthy(silent, 1), failing(silent, 2);
  std::atomic<bool> done = false;
  int beside = 0;  // steps that the healthy one has: some of them while the other one's step is run again and written
  std::thread thread([&] {
    for (; !done; ++beside) EXPECT_TRUE(healthy.step(false));
  });
  for (int i = 0; i < kSteps; ++i) EXPECT_EQ(failing.step(i == kBad), i != kBad);
  done = true;
  thread.join();
  // What each comes to alone, the failing one without its bad step.
  for (const auto& [seed, steps, worker] : {std::tuple(1, beside, &healthy), std::tuple(2, kSteps - 1, &failing)}) {
    Worker alone(options(OnAlarm::kSkip), seed);
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(alone.step(false));
    EXPECT_TRUE(same_bits({alone.a, alone.b}, {worker->a, worker->b}));
  }
  EXPECT_EQ(healthy.recorder.report()->outcome, "clean");
  EXPECT_TRUE(failing.recorder.finish().ok());  // training continued: its capsule is written beside it
  const Alarm alarm = alarm_of(failing.recorder);
  EXPECT_EQ(alarm.step, kBad);
  EXPECT_EQ(alarm.rerun, "persistent");
  EXPECT_EQ(alarm.births.at(0).place.op, "aten::sqrt");
  const Result<Replay> again = replay_capsule(alarm.capsule);
  ASSERT_TRUE(again.ok()) << again.why();
  EXPECT_EQ(again->verdict, Replay::Verdict::kIdentical) << again->text;
}

TEST_F(RecorderTest, ThreadsThatFailTogetherAreBothStopped) {
  RecorderOptions silent = options(OnAlarm::kSkip);
  silent.say = [](std::string_view) {};
  Worker one(silent, 1), other(silent, 2);
  const auto weights = copies({one.a, one.b, other.a, other.b});
  std::barrier together(2);
  const auto fail = [&](Worker& worker) {
    together.arrive_and_wait();
    EXPECT_FALSE(worker.step(true));
  };
  std::thread thread([&] { fail(other); });
  fail(one);
  thread.join();
  EXPECT_TRUE(same_bits(weights, {one.a, one.b, other.a, other.b}));
  int explained = 0;
  for (Worker* worker : {&one, &other}) {
    const Alarm alarm = alarm_of(worker->recorder);
    EXPECT_EQ(alarm.sink_kind, "loss");
    explained += alarm.rerun == "persistent";
    if (alarm.rerun != "persistent") {
      EXPECT_NE(worker->recorder.report_json().find("another recorder of this process"), std::string::npos);
    } else {
      EXPECT_EQ(alarm.births.at(0).place.op, "aten::sqrt");
    }
  }
  EXPECT_GE(explained, 1);
}

TEST_F(RecorderTest, WhatCannotBeReadIsNamed) {
  const at::Tensor w = at::ones({3}, at::TensorOptions().device(at::kMeta)).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.5));
  Recorder recorder(options());
  recorder.watch(sgd);
  EXPECT_TRUE(recorder
                  .step(sgd,
                        [&] {
                          sgd.zero_grad();
                          at::Tensor loss = (w * NAN).sum();
                          loss.backward();
                          return loss;
                        })
                  .applied);
  EXPECT_EQ(recorder.report()->gradients_scanned, 0u);
  EXPECT_TRUE(recorder.finish().ok());
  EXPECT_NE(said_.find("not watched: gradients on meta; losses on meta"), std::string::npos) << said_;
}

TEST_F(RecorderTest, AStepWithinAnotherIsTakenOnce) {
  const at::Tensor w = at::ones({3}).requires_grad_(), v = at::ones({3}).requires_grad_();
  torch::optim::SGD outer(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.5));
  torch::optim::SGD inner(std::vector<at::Tensor>{v}, torch::optim::SGDOptions(0.5));
  Recorder recorder(options(OnAlarm::kSkip));
  int calls = 0;
  const StepResult result = recorder.step(outer, [&] {
    ++calls;
    EXPECT_TRUE(recorder
                    .step(inner,
                          [&] {
                            inner.zero_grad();
                            at::Tensor loss = v.sum();
                            loss.backward();
                            return loss;
                          })
                    .applied);
    outer.zero_grad();
    at::Tensor loss = at::sqrt(-w).sum();
    loss.backward();
    return loss;
  });
  EXPECT_FALSE(result.applied);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(v.detach(), at::full({3}, 0.5)));
  EXPECT_EQ(alarm_of(recorder).optimizer, "SGD");
}

TEST_F(RecorderTest, WithoutAClosureNothingIsStepped) {
  AlwaysBad bad;
  Recorder recorder(options());
  const StepResult result = recorder.step(bad.sgd, nullptr);
  EXPECT_FALSE(result.applied);
  EXPECT_FALSE(result.status.ok());
}

}  // namespace
}  // namespace finitude
