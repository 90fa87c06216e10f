// Gradients that are still multiplied by the loss scale when the optimizer takes them.
#include "explain/left_scale.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using B = TraceBuilder;

Finding judged(const char* optimizer, double left_scale, double factor, const char* cause_class = "learning-rate") {
  B b;
  b.history.optimizer = optimizer;
  b.history.left_scale = left_scale;
  auto loss = b.tensor({2}), scaled = b.tensor({2 * factor});
  loss.requires_grad = scaled.requires_grad = true;
  b.op("aten::mul", {{"self", loss}, {"other", b.tensor({factor})}}, {scaled});
  Finding finding;
  finding.cause_class = cause_class;
  finding.text = "the updates are too large";
  finding.fix_outcome = "loss finite; one step does not show which learning rate the run needs";
  judge_left_scale(finding, b.history, b.trace);
  return finding;
}

TEST(LeftScale, IsTheCauseOfUpdatesInProportionToIt) {
  const Finding found = judged("SGD", 65536, 65536);
  EXPECT_EQ(found.cause_class, "loss-scale-misuse");
  EXPECT_TRUE(
      found.text.starts_with("SGD.step() takes gradients that are still multiplied by the loss scale 65536 at "
                             "model.py:1"))
      << found.text;
  EXPECT_EQ(found.fix_outcome, "loss finite");
}

TEST(LeftScale, IsASecondFaultBesideAnOptimizerThatDividesByTheGradient) {
  const Finding found = judged("AdamW", 65536, 65536);
  EXPECT_EQ(found.cause_class, "learning-rate");
  EXPECT_NE(found.text.find("; besides, AdamW.step() takes"), std::string::npos) << found.text;
}

TEST(LeftScale, IsNotSaidOfAnotherLossOrAnotherCause) {
  EXPECT_EQ(judged("SGD", 65536, 3).text, "the updates are too large");
  EXPECT_EQ(judged("SGD", 0, 65536).cause_class, "learning-rate");
  EXPECT_EQ(judged("SGD", 65536, 65536, "log-of-zero").cause_class, "log-of-zero");
}

}  // namespace
}  // namespace finitude::explain
