// Finite gradients that are all exactly zero: nothing is learned, and nobody may say that all was well.
#include <torch/nn/utils/clip_grad.h>

#include <memory>

#include "recorder/testing_torch.h"

namespace finitude {
namespace {

constexpr int kSteps = 20;

struct Clipped {
  at::Tensor w = at::ones({3}).requires_grad_();
  torch::optim::SGD sgd{std::vector<at::Tensor>{w}, torch::optim::SGDOptions(1e-3)};

  // From step `first` up to `last` the norm of the gradients overflows, and clipping by it makes them zero.
  void train(Recorder& recorder, int first, int last) {
    for (int i = 0; i < kSteps; ++i) {
      const double factor = i >= first && i < last ? 1e25 : 1.0;
      const StepResult result = recorder.step(sgd, [&] {
        sgd.zero_grad();
        at::Tensor loss = w.square().sum() * factor;
        loss.backward();
        torch::nn::utils::clip_grad_norm_(w, 1.0);
        return loss;
      });
      EXPECT_TRUE(result.applied && !result.alarm);
    }
  }
};

TEST_F(RecorderTest, ARunThatStoppedLearningSaysSo) {
  Clipped clipped;
  Recorder recorder(options());
  recorder.watch(clipped.sgd, {{"w", clipped.w}});
  clipped.train(recorder, 8, kSteps);
  const Result<Report> report = recorder.report();
  ASSERT_TRUE(report.ok()) << report.why();
  EXPECT_NE(recorder.report_json().find("exactly zero in the last 12 steps, from step 8 on"), std::string::npos);
  EXPECT_TRUE(recorder.finish().ok());
  EXPECT_NE(said_.find("every gradient is zero since step 8"), std::string::npos) << said_;
  EXPECT_EQ(said_.find("all finite"), std::string::npos) << said_;
}

TEST_F(RecorderTest, AFewLastStepsOfZerosAreCounted) {
  auto clipped = std::make_unique<Clipped>();
  Recorder recorder(options());
  recorder.watch(clipped->sgd, {{"w", clipped->w}});
  clipped->train(recorder, kSteps - 3, kSteps);
  recorder.forget(clipped->sgd);
  clipped.reset();  // what its last steps were like is still known
  EXPECT_TRUE(recorder.finish().ok());
  EXPECT_NE(said_.find("the last 3 steps had only zero gradients"), std::string::npos) << said_;
  EXPECT_EQ(said_.find("all finite"), std::string::npos) << said_;
}

TEST_F(RecorderTest, ZerosThatAreOverAreNotSaid) {
  Clipped clipped;
  Recorder recorder(options());
  recorder.watch(clipped.sgd, {{"w", clipped.w}});
  clipped.train(recorder, 2, kSteps - 2);
  EXPECT_TRUE(recorder.finish().ok());
  EXPECT_NE(said_.find("all finite"), std::string::npos) << said_;
}

}  // namespace
}  // namespace finitude
