// LBFGS, which calls its closure itself.
#include <torch/optim/lbfgs.h>

#include "finitude/recorder.h"
#include "recorder/testing_torch.h"

namespace finitude {
namespace {

// Least squares, and from step `bad` on the logarithm of what may be negative.
struct Fit {
  at::Tensor x = at::randn({20, 3}), y = x.matmul(at::ones({3, 1})) * 3, w = at::full({3, 1}, 0.1).requires_grad_();
  torch::optim::LBFGS lbfgs{std::vector<at::Tensor>{w}, torch::optim::LBFGSOptions(0.5).max_iter(4)};
  bool bad = false;
  at::Tensor operator()() {
    FINITUDE_HERE("fit");
    lbfgs.zero_grad();
    at::Tensor loss = (x.matmul(w) - y).square().mean();
    if (bad) loss = loss + at::log(w.sum() - 100);
    loss.backward();
    return loss;
  }
};

std::vector<at::Tensor> state_of(Fit& fit) {
  std::vector<at::Tensor> out{fit.w};
  const auto found = fit.lbfgs.state().find(fit.w.unsafeGetTensorImpl());
  if (found == fit.lbfgs.state().end()) return out;
  const auto& s = static_cast<const torch::optim::LBFGSParamState&>(*found->second);
  for (const at::Tensor& t : {s.d(), s.prev_flat_grad(), s.H_diag()}) out.push_back(t);
  for (const auto* list : {&s.old_dirs(), &s.old_stps(), &s.ro()}) out.insert(out.end(), list->begin(), list->end());
  return out;
}

TEST_F(RecorderTest, SearchesThatAreHealthyAreBitIdentical) {
  std::vector<at::Tensor> state[2];
  for (const bool watched : {false, true}) {
    torch::manual_seed(3);
    Fit fit;
    Recorder recorder(options());
    for (int i = 0; i < 4; ++i) {
      if (watched)
        EXPECT_TRUE(recorder.step(fit.lbfgs, std::ref(fit)).applied);
      else
        fit.lbfgs.step(std::ref(fit));
    }
    state[watched] = copies(state_of(fit));
  }
  EXPECT_TRUE(same_bits(state[0], state[1]));
}

TEST_F(RecorderTest, ASearchThatFailsIsUndone) {
  Fit fit;
  Recorder recorder(options(OnAlarm::kSkip));
  recorder.watch(fit.lbfgs, {{"w", fit.w}});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(recorder.step(fit.lbfgs, std::ref(fit)).applied);
  const auto before = copies(state_of(fit));
  ASSERT_GT(before.size(), 4u);
  fit.bad = true;
  const StepResult result = recorder.step(fit.lbfgs, std::ref(fit));
  EXPECT_TRUE(result.alarm);
  EXPECT_FALSE(result.applied);
  EXPECT_TRUE(same_bits(before, state_of(fit)));
  const Alarm alarm = alarm_of(recorder);
  EXPECT_EQ(alarm.step, 2);
  EXPECT_TRUE(alarm.weights_clean);
  EXPECT_EQ(alarm.rerun, "persistent");
  EXPECT_EQ(alarm.births.at(0).place.op, "aten::log");
  EXPECT_EQ(alarm.cause.cause_class, "log-of-negative");
  fit.bad = false;
  EXPECT_TRUE(recorder.step(fit.lbfgs, std::ref(fit)).applied);
}

}  // namespace
}  // namespace finitude
