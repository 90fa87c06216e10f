// The recorder through its public headers: what it leaves alone, what it keeps from the optimizer, and what it says.
#include "finitude/recorder.h"

#include <ATen/Functions.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "recorder/testing_torch.h"

namespace finitude {
namespace {

TEST_F(RecorderTest, HealthyTrainingIsBitIdentical) {
  std::vector<at::Tensor> weights[2], drawn[2];
  for (const bool watched : {false, true}) {
    torch::manual_seed(11);
    Net net;
    torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
    Recorder recorder(options());
    recorder.watch(adam, net);
    training(
        net,
        [&](int, const auto& closure) {
          if (watched) {
            const StepResult result = recorder.step(adam, closure);
            EXPECT_TRUE(result.applied && !result.alarm && result.status.ok());
          } else {
            closure();
            adam.step();
          }
          return true;
        },
        /*healthy=*/true);
    weights[watched] = copies(all_of(net));
    drawn[watched] = {at::rand({4})};
    if (watched) {
      const Result<Report> report = recorder.report();
      ASSERT_TRUE(report.ok()) << report.why();
      EXPECT_EQ(report->outcome, "clean");
      EXPECT_EQ(report->steps, 10u);
      EXPECT_EQ(report->gradients_scanned, 10u * net.parameters().size());
    }
  }
  EXPECT_TRUE(same_bits(weights[0], weights[1]));
  EXPECT_TRUE(same_bits(drawn[0], drawn[1]));
  EXPECT_NE(said_.find("10 steps watched"), std::string::npos) << said_;
  EXPECT_NE(said_.find("all finite"), std::string::npos);
}

TEST_F(RecorderTest, StopKeepsWeightsStateBuffersAndGenerators) {
  Net net;
  torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
  Recorder recorder(options());
  recorder.watch(adam, net);
  int steps = 0;
  training(net, [&](int i, const auto& closure) {
    const auto before = copies(all_of(net));
    std::vector<at::Tensor> state;
    const auto moments = [&] {
      std::vector<at::Tensor> out;
      for (const auto& p : net.parameters()) {
        const auto found = adam.state().find(p.unsafeGetTensorImpl());
        if (found == adam.state().end()) continue;
        const auto& s = static_cast<const torch::optim::AdamParamState&>(*found->second);
        out.push_back(s.exp_avg());
        out.push_back(s.exp_avg_sq());
      }
      return out;
    };
    state = copies(moments());
    const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
    const StepResult result = recorder.step(adam, closure);
    steps = i;
    EXPECT_EQ(result.step, static_cast<std::uint64_t>(i));
    if (i != kBadStep) return result.status.ok();
    EXPECT_FALSE(result.status.ok());
    EXPECT_FALSE(result.applied);
    EXPECT_TRUE(result.alarm);
    EXPECT_TRUE(same_bits(before, all_of(net)));
    EXPECT_TRUE(same_bits(state, moments()));
    EXPECT_TRUE(at::equal(generator, at::detail::getDefaultCPUGenerator().get_state()));
    return result.status.ok();
  });
  EXPECT_EQ(steps, kBadStep);
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.step, kBadStep);
  EXPECT_EQ(alarm.optimizer, "Adam");
  EXPECT_EQ(alarm.sink_kind, "loss");
  EXPECT_TRUE(alarm.weights_clean);
  EXPECT_EQ(alarm.rerun, "persistent");
  EXPECT_EQ(alarm.rerun_by, "closure");
  ASSERT_FALSE(alarm.births.empty());
  EXPECT_EQ(alarm.births[0].phase, "forward");
  EXPECT_EQ(alarm.births[0].place.op, "aten::log");
  EXPECT_EQ(alarm.births[0].place.module, "loss");
  EXPECT_EQ(std::filesystem::path(alarm.births[0].place.file).filename(), "testing_torch.h");
  EXPECT_EQ(alarm.cause.cause_class, "log-of-zero");
  EXPECT_EQ(alarm.cause.confidence, "proven");
  EXPECT_FALSE(alarm.fix.text.empty());
  EXPECT_TRUE(alarm.fix.verified) << recorder.report_json();
  EXPECT_NE(said_.find("stopped before the optimizer"), std::string::npos) << said_;
}

TEST_F(RecorderTest, SkipEqualsContinueInTheLoop) {
  std::vector<at::Tensor> weights[2], drawn[2];
  for (const bool watched : {false, true}) {
    torch::manual_seed(11);
    Net net;
    torch::optim::Adam adam(net.parameters(), torch::optim::AdamOptions(1e-2));
    Recorder recorder(options(OnAlarm::kSkip));
    recorder.watch(adam, net);
    training(net, [&](int i, const auto& closure) {
      if (watched) {
        const StepResult result = recorder.step(adam, closure);
        EXPECT_EQ(result.applied, i != kBadStep);
        EXPECT_TRUE(result.status.ok());
      } else if (i != kBadStep) {
        closure();
        adam.step();
      }
      return true;
    });
    weights[watched] = copies(all_of(net));
    drawn[watched] = {at::rand({4})};
  }
  EXPECT_TRUE(same_bits(weights[0], weights[1]));
  EXPECT_TRUE(same_bits(drawn[0], drawn[1]));
}

TEST_F(RecorderTest, SkipStopsAfterTooManyInARow) {
  AlwaysBad bad;
  RecorderOptions few = options(OnAlarm::kSkip);
  few.max_skips = 3;
  Recorder recorder(few);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(recorder.step(bad.sgd, std::ref(bad)).status.ok());
  EXPECT_FALSE(recorder.step(bad.sgd, std::ref(bad)).status.ok());
  EXPECT_TRUE(at::equal(bad.w.detach(), at::ones({3})));
}

TEST_F(RecorderTest, WarnAppliesTheStepUnchanged) {
  AlwaysBad bad, plain;
  Recorder recorder(options(OnAlarm::kWarn));
  recorder.watch(bad.sgd, {{"w", bad.w}});
  const StepResult result = recorder.step(bad.sgd, std::ref(bad));
  EXPECT_TRUE(result.applied && result.alarm && result.status.ok());
  plain();
  plain.sgd.step();
  EXPECT_TRUE(same_bits({bad.w}, {plain.w}));
  const Alarm alarm = alarm_of(recorder);
  EXPECT_FALSE(alarm.weights_clean);
  EXPECT_EQ(alarm.cause.cause_class, "negative-domain");
}

TEST_F(RecorderTest, RaiseDoesNotRunTheClosureAgain) {
  AlwaysBad bad;
  int calls = 0;
  Recorder recorder(options(OnAlarm::kRaise));
  const StepResult result = recorder.step(bad.sgd, [&] { return ++calls, bad(); });
  EXPECT_FALSE(result.status.ok());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(alarm_of(recorder).rerun, "not-run");
  EXPECT_TRUE(alarm_of(recorder).capsule.empty());
}

TEST_F(RecorderTest, ALossThatHarmsNothingIsApplied) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.5));
  Recorder recorder(options());
  const StepResult result = recorder.step(sgd, [&] {
    sgd.zero_grad();
    const at::Tensor zero = at::zeros({1});
    at::Tensor loss = w.sum() + at::log(zero).sum();
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(result.alarm && result.applied && result.status.ok());
  EXPECT_TRUE(at::equal(w.detach(), at::full({3}, 0.5)));
  EXPECT_TRUE(alarm_of(recorder).harmless);
  EXPECT_TRUE(alarm_of(recorder).weights_clean);
}

TEST_F(RecorderTest, OptimizersAreJudgedOnTheirOwn) {
  const at::Tensor a = at::ones({2}).requires_grad_(), b = at::ones({2}).requires_grad_();
  torch::optim::SGD first(std::vector<at::Tensor>{a}, torch::optim::SGDOptions(0.5));
  torch::optim::SGD second(std::vector<at::Tensor>{b}, torch::optim::SGDOptions(0.5));
  Recorder recorder(options(OnAlarm::kSkip));
  recorder.watch(first, {{"a", a}});
  recorder.watch(second, {{"b", b}});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(recorder
                    .step(first,
                          [&] {
                            first.zero_grad();
                            at::Tensor loss = a.sum();
                            loss.backward();
                            return loss;
                          })
                    .applied);
    EXPECT_EQ(recorder
                  .step(second,
                        [&] {
                          second.zero_grad();
                          at::Tensor loss = (i == 1 ? at::sqrt(b - 1.5) : b).sum();
                          loss.backward();
                          return loss;
                        })
                  .applied,
              i != 1)
        << i;
  }
  EXPECT_TRUE(at::equal(a.detach(), at::full({2}, -0.5)));
  EXPECT_TRUE(at::equal(b.detach(), at::zeros({2})));
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.step, 1);
  EXPECT_EQ(alarm.births.at(0).place.op, "aten::sqrt");
  EXPECT_TRUE(alarm.capsule.ends_with("step-000001-optimizer-1")) << alarm.capsule;
}

TEST_F(RecorderTest, BackwardBirthHasTheLineOfItsForward) {
  const at::Tensor w = at::zeros({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options());
  recorder.watch(sgd, {{"w", w}});
  int line = 0;
  const StepResult result = recorder.step(sgd, [&] {
    FINITUDE_HERE("all");
    sgd.zero_grad();
    at::Tensor root;
    {
      line = __LINE__ + 1;
      FINITUDE_HERE("root");
      root = at::sqrt(w);
    }
    at::Tensor loss = (root * at::zeros({3})).sum();
    loss.backward();
    return loss;
  });
  EXPECT_FALSE(result.applied);
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.sink_kind, "gradient");
  EXPECT_EQ(alarm.sink_name, "w");
  ASSERT_FALSE(alarm.births.empty());
  EXPECT_EQ(alarm.births[0].phase, "backward");
  EXPECT_EQ(alarm.births[0].node, "SqrtBackward0");
  EXPECT_EQ(alarm.births[0].forward.op, "aten::sqrt");
  EXPECT_EQ(alarm.births[0].forward.line, line);
  EXPECT_EQ(alarm.births[0].place.line, line);
  EXPECT_EQ(alarm.births[0].forward.module, "all.root");
}

TEST_F(RecorderTest, BadDataIsReportedFromBadArithmetic) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options());
  at::Tensor x = at::ones({4, 3});
  x[2][1] = NAN;
  const StepResult result = recorder.step(sgd, [&] {
    FINITUDE_HERE("step");
    recorder.input("x", x);
    sgd.zero_grad();
    at::Tensor loss = (x * w).sum();
    loss.backward();
    return loss;
  });
  EXPECT_FALSE(result.applied);
  const Alarm alarm = alarm_of(recorder);
  ASSERT_FALSE(alarm.births.empty());
  EXPECT_EQ(alarm.births[0].phase, "data");
  EXPECT_EQ(alarm.cause.cause_class, "bad-data");
  EXPECT_EQ(alarm.births[0].rows, std::vector<std::int64_t>{2});
}

TEST_F(RecorderTest, ValuesBadBeforeFirstStepAreState) {
  const at::Tensor w = at::full({3}, NAN).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options());
  recorder.watch(sgd, {{"w", w}});
  int calls = 0;
  EXPECT_FALSE(recorder.step(sgd, [&] { return ++calls, w.sum(); }).status.ok());
  EXPECT_EQ(calls, 0);
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.sink_kind, "parameter");
  EXPECT_EQ(alarm.sink_name, "w");
  EXPECT_EQ(alarm.cause.cause_class, "corrupted-state");
  EXPECT_EQ(alarm.births.at(0).phase, "state");
}

TEST_F(RecorderTest, WhatTheOptimizerRuinsIsSeen) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(1e38));
  Recorder recorder(options());
  recorder.watch(sgd, {{"w", w}});
  const StepResult result = recorder.step(sgd, [&] {
    sgd.zero_grad();
    at::Tensor loss = (w * 100).sum();
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(result.applied);
  EXPECT_FALSE(result.status.ok());
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.step, 0);
  EXPECT_EQ(alarm.sink_kind, "parameter");
  EXPECT_FALSE(alarm.weights_clean);
  EXPECT_EQ(alarm.births.at(0).phase, "optimizer");
}

TEST_F(RecorderTest, FiniteSecondRunKeepsTheFirstGradients) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options());
  int calls = 0;
  bool seen_again = false;
  const StepResult result = recorder.step(sgd, [&] {
    seen_again |= recorder.running_again();
    sgd.zero_grad();
    at::Tensor loss = (w * (calls++ == 0 ? NAN : 1.0)).sum();
    loss.backward();
    return loss;
  });
  EXPECT_FALSE(result.applied);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(seen_again);
  EXPECT_FALSE(recorder.running_again());
  EXPECT_TRUE(at::isnan(w.grad()).all().item<bool>()) << "the gradient is that of the first run";
}

TEST_F(RecorderTest, ExceptionsOfTheClosurePassThrough) {
  AlwaysBad bad;
  Recorder recorder(options());
  EXPECT_THROW((void)recorder.step(bad.sgd, []() -> at::Tensor { throw std::runtime_error("mine"); }),
               std::runtime_error);
  int calls = 0;
  const StepResult result = recorder.step(bad.sgd, [&] {
    if (++calls == 2) throw std::runtime_error("only the second time");
    return bad();
  });
  EXPECT_FALSE(result.applied);
  EXPECT_TRUE(recorder.is_on());
  EXPECT_EQ(alarm_of(recorder).rerun, "not-run");
  EXPECT_NE(recorder.report_json().find("only the second time"), std::string::npos);
}

TEST_F(RecorderTest, GateJudgesWithoutAClosure) {
  AlwaysBad bad;
  Recorder recorder(options(OnAlarm::kSkip));
  const StepResult result = recorder.gate(bad.sgd, bad());
  EXPECT_TRUE(result.alarm);
  EXPECT_FALSE(result.applied);
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(alarm_of(recorder).rerun, "not-run");
  EXPECT_TRUE(at::equal(bad.w.detach(), at::ones({3})));
}

TEST_F(RecorderTest, AlarmNamesTheOnsetOfLossGrowth) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  RecorderOptions raising = options(OnAlarm::kRaise);
  raising.warnings = "off";
  Recorder recorder(raising);
  for (int i = 0; i <= 40; ++i) {
    sgd.zero_grad();
    const double scale = i == 40 ? std::numeric_limits<double>::infinity() : i < 20 ? 1 : std::pow(2, i - 19);
    at::Tensor loss = w.sum() * scale;
    loss.backward();
    (void)recorder.gate(sgd, loss);
  }
  const std::string report = recorder.report_json();
  EXPECT_NE(report.find("\"onset\""), std::string::npos) << report;
  EXPECT_NE(report.find("the loss grew since step 19"), std::string::npos) << report;
  EXPECT_EQ(alarm_of(recorder).step, 40u);
}

TEST_F(RecorderTest, ClippingAndMicroBatchesHideNothing) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options(OnAlarm::kSkip));
  StepResult result = recorder.step(sgd, [&] {
    sgd.zero_grad();
    at::Tensor total = at::zeros({});
    for (int i = 0; i < 3; ++i) {
      at::Tensor loss = (i == 1 ? at::log(w - 1) : w).sum();
      recorder.loss(loss);
      loss.backward();
      total = total + at::nan_to_num(loss.detach(), 0, 0, 0);
    }
    return total;
  });
  EXPECT_FALSE(result.applied);
  EXPECT_EQ(alarm_of(recorder).micro_batch, 1);
  result = recorder.step(sgd, [&] {
    sgd.zero_grad();
    at::Tensor loss = at::sqrt(w - 1).sum();
    loss.backward();
    recorder.scan(sgd);
    w.mutable_grad().clamp_(-1, 1);
    return loss;
  });
  EXPECT_FALSE(result.applied) << "the gradient was infinite before it was clamped";
}

TEST_F(RecorderTest, AGeneratorOfTheProgramIsPutBack) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  at::Generator own = at::detail::createCPUGenerator(3);
  const at::Tensor before = own.get_state();
  Recorder recorder(options());
  recorder.watch(own);
  std::vector<at::Tensor> drawn;
  EXPECT_FALSE(recorder
                   .step(sgd,
                         [&] {
                           sgd.zero_grad();
                           drawn.push_back(at::rand({3}, own));
                           at::Tensor loss = at::sqrt(-w * drawn.back()).sum();
                           loss.backward();
                           return loss;
                         })
                   .applied);
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
  EXPECT_TRUE(at::equal(before, own.get_state()));
  EXPECT_EQ(alarm_of(recorder).rerun, "persistent");
}

}  // namespace
}  // namespace finitude
