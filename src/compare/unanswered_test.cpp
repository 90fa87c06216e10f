#include "compare/unanswered.h"

#include <gtest/gtest.h>

namespace finitude::compare {
namespace {

// Call i reads storage i and writes storage i + 1.
Run chain(std::initializer_list<const char*> ops, bool backward) {
  Run run;
  run.results_are_all = false;
  const auto tensor = [](std::size_t storage) {
    Tensor t;
    t.element = element_of_name("float32");
    t.shape = {4};
    t.storage = static_cast<std::uint32_t>(storage);
    t.end = 16;
    t.health.numel = 4;
    return t;
  };
  for (const char* op : ops) {
    Call c;
    c.op = op;
    c.of_gradient = backward;
    c.inputs.push_back(tensor(run.calls.size()));
    c.outputs.push_back(tensor(run.calls.size() + 1));
    run.calls.push_back(c);
  }
  connect(run);
  return run;
}

TEST(Unanswered, ChainReadByACommonCallIsAnswered) {
  const compare::Run a = chain({"aten::exp", "aten::log"}, true),
                     b = chain({"aten::exp", "aten::clone", "aten::log"}, true);
  EXPECT_FALSE(unanswered(a, b, {{0, 0}, {kGap, 1}, {1, 2}}).any());
}

TEST(Unanswered, AGradientOfOneSideIsNot) {
  const compare::Run a = chain({"aten::exp"}, true), b = chain({"aten::exp", "aten::log", "aten::mul"}, true);
  const Unanswered u = unanswered(a, b, {{0, 0}, {kGap, 1}, {kGap, 2}});
  EXPECT_EQ(u.rows, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(u.in_b, 2u);
}

TEST(Unanswered, ALossOfOneSideIsNot) {
  const compare::Run a = chain({"aten::exp"}, true);
  compare::Run b = chain({"aten::exp", "aten::mean", "aten::ones_like"}, true);
  b.calls[1].of_gradient = false;
  EXPECT_EQ(unanswered(a, b, {{0, 0}, {kGap, 1}, {kGap, 2}}).rows.front(), 1u);
}

TEST(Unanswered, ValuesOnlyReadBesideTrainingAreNoOutcome) {
  compare::Run a = chain({"aten::exp"}, true), b = chain({"aten::exp", "aten::norm"}, true);
  b.calls[1].of_gradient = false;
  EXPECT_FALSE(unanswered(a, b, {{0, 0}, {kGap, 1}}).any());
  b.calls[1].outputs[0].health.nan = 1;  // but for NaN
  EXPECT_TRUE(unanswered(a, b, {{0, 0}, {kGap, 1}}).any());
}

TEST(Unanswered, OfARunWithoutABackwardItIs) {
  EXPECT_TRUE(
      unanswered(chain({"aten::exp"}, false), chain({"aten::exp", "aten::log"}, false), {{0, 0}, {kGap, 1}}).any());
}

TEST(Unanswered, FewPairs) {
  const compare::Run a = chain({"aten::exp", "aten::log", "aten::mul"}, true);
  EXPECT_TRUE(unanswered(a, a, {{0, 0}, {1, kGap}, {kGap, 1}, {2, kGap}, {kGap, 2}}).few);
}

}  // namespace
}  // namespace finitude::compare
