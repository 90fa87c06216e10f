// What a second run may not change, and what is said of one that does not come out as the first did.
#include <dlfcn.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <stdexcept>

#include "finitude/recorder.h"
#include "recorder/testing_torch.h"

namespace finitude {
namespace {

// Two parameters, of which a step of the first optimizer reaches both.
struct Two {
  at::Tensor a = at::ones({3}).requires_grad_(), b = at::full({3}, 2.0).requires_grad_(),
             frozen = at::ones({3}).requires_grad_();
  torch::optim::SGD first{std::vector<at::Tensor>{a}, torch::optim::SGDOptions(0.1)};
  torch::optim::SGD second{std::vector<at::Tensor>{b}, torch::optim::SGDOptions(0.1)};
};

TEST_F(RecorderTest, SecondRunAddsToNoOtherGradients) {
  for (const bool reported : {false, true}) {  // by Recorder::loss, or as what the closure returns
    Two two;
    Recorder recorder(options(OnAlarm::kSkip));
    recorder.watch(two.first, {{"a", two.a}});
    if (reported) recorder.watch(two.second, {{"b", two.b}});
    two.b.mutable_grad() = at::ones({3});
    const at::Tensor gradient = two.b.grad();
    at::Tensor left[2];
    const StepResult result = recorder.step(two.first, [&] {
      two.first.zero_grad();
      at::Tensor part = (two.frozen * two.b).sum(), loss = at::sqrt(-two.a).sum() + (two.a * two.b).sum();
      if (reported) recorder.loss(part);
      if (reported) part.backward();
      loss.backward();
      if (!recorder.running_again()) left[0] = two.b.grad().clone();
      if (!recorder.running_again() && reported) left[1] = two.frozen.grad().clone();
      return loss;
    });
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(alarm_of(recorder).rerun, "persistent");
    EXPECT_TRUE(gradient.is_same(two.b.grad()));
    EXPECT_TRUE(at::equal(left[0], two.b.grad()));
    if (reported) {
      EXPECT_TRUE(at::equal(left[1], two.frozen.grad()));
    }
  }
}

TEST_F(RecorderTest, SkippedStepKeepsBuffersOfOtherModels) {
  Net generator, discriminator;
  torch::optim::SGD first(generator.parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD second(discriminator.parameters(), torch::optim::SGDOptions(0.1));
  Recorder recorder(options(OnAlarm::kSkip));
  recorder.watch(first, generator);
  recorder.watch(second, discriminator);
  const auto before = copies(discriminator.buffers());
  const at::Tensor x = at::randn({12, 6});
  EXPECT_FALSE(recorder
                   .step(first,
                         [&] {
                           first.zero_grad();
                           const at::Tensor made = generator.forward(x);
                           at::Tensor loss = discriminator.forward(at::cat({made / (made - made), made}, 1)).sum();
                           loss.backward();
                           return loss;
                         })
                   .applied);
  EXPECT_TRUE(same_bits(before, discriminator.buffers()));
  // Loss and gradients are finite, and a buffer of the other model takes in a NaN.
  EXPECT_FALSE(recorder
                   .step(first,
                         [&] {
                           first.zero_grad();
                           at::Tensor loss = generator.forward(x).sum();
                           loss.backward();
                           discriminator.norm->running_mean.fill_(NAN);
                           return loss;
                         })
                   .applied);
  EXPECT_TRUE(same_bits(before, discriminator.buffers()));
  const Result<Report> report = recorder.report();
  ASSERT_TRUE(report.ok() && report->alarms.size() == 2) << recorder.report_json();
  EXPECT_EQ(report->alarms[1].sink_kind, "buffer");
  EXPECT_EQ(report->alarms[1].sink_name, "optimizer 1: norm.running_mean");
}

TEST_F(RecorderTest, BufferTurnedNaNBetweenStepsIsReportedOnce) {
  Net net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.01));
  Recorder recorder(options(OnAlarm::kSkip));
  recorder.watch(sgd, net);
  const at::Tensor x = at::randn({12, 6});
  for (int i = 0; i < 4; ++i) {
    if (i == 2) net.norm->running_var.fill_(NAN), net.norm->eval();
    EXPECT_EQ(recorder
                  .step(sgd,
                        [&] {
                          sgd.zero_grad();
                          at::Tensor loss = net.head->forward(net.first->forward(x).narrow(1, 0, 8)).sum();
                          loss.backward();
                          return loss;
                        })
                  .alarm,
              i == 2)
        << i;
  }
}

TEST_F(RecorderTest, ClosureThrowingForNaNIsAnAlarm) {
  AlwaysBad bad;
  Recorder recorder(options(OnAlarm::kSkip));
  recorder.watch(bad.sgd, {{"w", bad.w}});
  int calls = 0;
  const auto check = [&]() -> at::Tensor {
    ++calls;
    const at::Tensor loss = bad();
    if (std::isnan(loss.item<float>())) throw std::domain_error("loss is NaN\nand more");
    return loss;
  };
  EXPECT_THROW((void)recorder.step(bad.sgd, check), std::domain_error);
  EXPECT_EQ(calls, 1);
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.sink_kind, "gradient");
  EXPECT_TRUE(alarm.weights_clean);
  EXPECT_NE(recorder.report_json().find("the program itself threw: loss is NaN\""), std::string::npos)
      << recorder.report_json();
  EXPECT_NE(said_.find("own exception"), std::string::npos) << said_;
  // The gradient is bad still, and no work of a closure that throws at once.
  EXPECT_THROW((void)recorder.step(bad.sgd, []() -> at::Tensor { throw std::runtime_error("before anything"); }),
               std::runtime_error);
  EXPECT_EQ(recorder.report()->alarms.size(), 1u);
}

TEST_F(RecorderTest, StepFiniteOnSecondRunIsTransient) {
  const at::Tensor w = at::ones({3}).requires_grad_(), v = at::ones({3}).requires_grad_(), x = at::randn({3});
  for (const bool same : {true, false}) {
    torch::optim::SGD sgd(std::vector<at::Tensor>{w, v}, torch::optim::SGDOptions(0.1));
    Recorder recorder(options());
    int calls = 0;
    EXPECT_FALSE(recorder
                     .step(sgd,
                           [&] {
                             sgd.zero_grad();
                             ++calls;
                             at::Tensor loss =
                                 (w * (calls == 1 ? NAN : 1.0)).sum() + (v * (same || calls == 1 ? x : x + 1)).sum();
                             loss.backward();
                             return loss;
                           })
                     .applied);
    EXPECT_EQ(alarm_of(recorder).rerun, same ? "transient" : "not-run");
    EXPECT_NE(recorder.report_json().find(same ? "it did not come again"
                                               : "the closure computed something else the second time"),
              std::string::npos)
        << recorder.report_json();
  }
}

TEST_F(RecorderTest, WhereNothingCanBeComparedNothingIsClaimed) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options());
  at::Tensor x;  // a loader's next batch, as it would be
  int calls = 0;
  EXPECT_FALSE(recorder
                   .step(sgd,
                         [&] {
                           sgd.zero_grad();
                           x = at::full({3}, ++calls == 1 ? NAN : 1.0);
                           recorder.input("x", x);
                           at::Tensor loss = (w * x).sum();
                           loss.backward();
                           return loss;
                         })
                   .applied);
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.rerun, "not-run");
  EXPECT_EQ(alarm.cause.cause_class, "bad-data");
  EXPECT_NE(alarm.cause.text.find("the input x held 3 NaN"), std::string::npos) << alarm.cause.text;
}

TEST_F(RecorderTest, GradientBadBeforeTheClosureIsReportedSo) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  Recorder recorder(options());
  recorder.watch(sgd, {{"w", w}});
  at::sqrt(-w).sum().backward();
  EXPECT_FALSE(recorder
                   .step(sgd,
                         [&] {
                           at::Tensor loss = w.sum();
                           loss.backward();
                           return loss;
                         })
                   .applied);
  EXPECT_EQ(alarm_of(recorder).rerun, "not-run");
  EXPECT_NE(alarm_of(recorder).cause.text.find("the gradient of w was bad already when the closure began"),
            std::string::npos);
}

class Ruining : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    const at::Tensor loss = SGD::step(std::move(closure));
    const at::NoGradGuard no_grad;
    if (++steps == 5) param_groups()[0].params()[1].div_(0);
    return loss;
  }
  int steps = 0;
};

TEST_F(RecorderTest, WriteBeforeTheStepIsReportedWithWriter) {
  for (const bool by_program : {false, true}) {
    const at::Tensor w = at::ones({2, 3}).requires_grad_(), v = at::ones({3}).requires_grad_();
    Ruining optimizer(std::vector<at::Tensor>{w, v}, torch::optim::SGDOptions(0.01));
    if (by_program) optimizer.steps = 100;
    Recorder recorder(options());
    recorder.watch(optimizer, {{"w", w}, {"v", v}});
    for (int i = 0; i < 7; ++i) {
      const at::NoGradGuard no_grad;
      if (by_program && i == 5) v.fill_(INFINITY);
      const at::AutoGradMode grad(true);
      if (!recorder
               .step(optimizer,
                     [&] {
                       optimizer.zero_grad();
                       at::Tensor loss = (w * v).mean();
                       loss.backward();
                       return loss;
                     })
               .status.ok())
        break;
    }
    const Alarm alarm = alarm_of(recorder);
    EXPECT_EQ(alarm.step, 5);
    EXPECT_FALSE(alarm.weights_clean);
    EXPECT_EQ(alarm.cause.cause_class, by_program ? "corrupted-state" : "optimizer-arithmetic");
    EXPECT_EQ(alarm.births.at(0).phase, by_program ? "state" : "optimizer");
    EXPECT_NE(
        alarm.cause.text.find(by_program ? "the program wrote it" : "Ruining wrote it in one of the steps 2 to 4"),
        std::string::npos)
        << alarm.cause.text;
    if (by_program) {
      EXPECT_NE(alarm.cause.text.find("3 Inf of 3 values"), std::string::npos) << alarm.cause.text;
    }
    EXPECT_NE(said_.find("stopped before the optimizer"), std::string::npos) << said_;
    said_.clear();
  }
}

TEST_F(RecorderTest, InitialNaNStateIsFoundBeforeWeightsSpoil) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::Adam adam(std::vector<at::Tensor>{w}, torch::optim::AdamOptions(0.1));
  w.sum().backward();
  adam.step();
  static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second).exp_avg_sq().fill_(NAN);
  const auto before = copies({w});
  Recorder recorder(options());
  recorder.watch(adam, {{"w", w}});
  EXPECT_FALSE(recorder.step(adam, [&] { return w.sum(); }).applied);
  EXPECT_TRUE(same_bits(before, {w}));
  EXPECT_EQ(alarm_of(recorder).sink_kind, "state");
  EXPECT_EQ(alarm_of(recorder).sink_name, "w.exp_avg_sq");
  EXPECT_EQ(alarm_of(recorder).cause.cause_class, "corrupted-state");
}

TEST_F(RecorderTest, TwoScopesMayStandOnALine) {
  AlwaysBad bad;
  Recorder recorder(options());
  (void)recorder.step(bad.sgd, [&] {
    FINITUDE_HERE("outer");
    FINITUDE_HERE("inner");
    return bad();
  });
  EXPECT_EQ(alarm_of(recorder).births.at(0).place.module, "outer.inner");
}

TEST_F(RecorderTest, LineInRelativelyLoadedLibraryIsFound) {
  const std::filesystem::path library = FINITUDE_TEST_LOADED, before = std::filesystem::current_path();
  std::filesystem::current_path(library.parent_path());
  void* const loaded = dlopen(("./" + library.filename().string()).c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::current_path(before);
  ASSERT_NE(loaded, nullptr) << dlerror();
  const auto log_of = reinterpret_cast<void (*)(const at::Tensor&, at::Tensor*)>(dlsym(loaded, "finitude_test_log"));
  ASSERT_NE(log_of, nullptr);
  const at::Tensor w = at::zeros({3}).requires_grad_();
  torch::optim::SGD sgd(std::vector<at::Tensor>{w}, torch::optim::SGDOptions(0.1));
  RecorderOptions lines = options();
  lines.debug_lines = true;
  Recorder recorder(lines);
  EXPECT_FALSE(recorder
                   .step(sgd,
                         [&] {
                           sgd.zero_grad();
                           at::Tensor logarithm;
                           log_of(w, &logarithm);
                           at::Tensor loss = logarithm.sum();
                           loss.backward();
                           return loss;
                         })
                   .applied);
  const Place place = alarm_of(recorder).births.at(0).place;
  EXPECT_EQ(std::filesystem::path(place.file).filename(), "loaded.cpp");
  EXPECT_EQ(place.line, 5);
}

}  // namespace
}  // namespace finitude
