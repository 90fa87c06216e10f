// What is said of a step whose replay is not what it was.
#include <gtest/gtest.h>

#include "explain/fix.h"

namespace finitude::explain {
namespace {

class RepeatedStep : public replay::StepLab {
 public:
  replay::Repeats many, one;
  std::string faithful() override { return "a replay of the unchanged step comes out with other bits"; }
  double step_seconds() const override { return 0.001; }
  replay::StepTrial run(const replay::Edit&) override { return {}; }
  replay::StepTrial deterministic() override { return {}; }
  replay::GuiltyRows guilty_rows(const std::vector<std::int64_t>&, const replay::JudgedOp&, double) override {
    return {};
  }
  replay::FillTrial filled(double) override { return {}; }
  replay::StepTrial after_share_of_update(double) override { return {}; }
  int again(int) override { return 0; }
  replay::Repeats repeats(int, int threads) override { return threads == 1 ? one : many; }
};

// A replay that is not the step: whether its operators agree with themselves is said, and judged by nobody.
TEST(Repeats, WithOneThreadAndWithAll) {
  struct Case {
    replay::Repeats many, one;
    const char* outcome;
  };
  for (const Case& c : {
           Case{{3, 3, 0, 4},
                {3, 3, 0, 1},
                "the same bits with 4 threads, finite; the same bits with one thread, finite"},
           Case{{3, 1, 2, 4},
                {3, 3, 0, 1},
                "other bits each time with 4 threads, not always finite; the same bits with one thread, finite: "
                "threads-dependent"},
           Case{{3, 1, 3, 4},
                {3, 1, 3, 1},
                "other bits each time with 4 threads, not finite; other bits each time with one thread, not finite: "
                "order-dependent, whatever the number of threads"},
           Case{{3, 3, 3, 1}, {}, "the same bits with one thread, not finite"},
       }) {
    Finding finding;
    RepeatedStep step;
    step.many = c.many;
    step.one = c.one;
    try_on_step(finding, step, {});
    ASSERT_EQ(finding.experiments.size(), 1u);
    EXPECT_EQ(finding.experiments.front().outcome, c.outcome);
    EXPECT_FALSE(finding.experiments.front().predicted);
  }
}

}  // namespace
}  // namespace finitude::explain
