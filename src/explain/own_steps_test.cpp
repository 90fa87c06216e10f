// An optimizer that evaluates the loss several times within a step, and leaves where it is defined.
#include "explain/own_steps.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using B = TraceBuilder;

// log of x: finite `before` times from the line that the birth is of, then of a negative number.
Finding log_of_evaluations(int before, const std::string& sink, bool one_line = true) {
  B b;
  std::uint32_t stack = record::kNone;
  for (int i = 0; i < before; ++i) {
    const auto op = b.op("aten::log", {{"self", b.tensor({1, 2})}}, {b.tensor({0, 0.7})});
    if (stack == record::kNone) stack = b.trace.ops[op].stack;
    b.trace.ops[op].stack = stack;
  }
  const auto birth = b.op("aten::log", {{"self", b.tensor({-1, 2})}}, {b.tensor({kNaN, 0.7})});
  if (before > 0 && one_line) b.trace.ops[birth].stack = stack;
  b.born(birth);
  b.trace.sinks.push_back({sink, "w", b.tensor({kNaN}), 1, 0});
  return b.explained();
}

TEST(OwnSteps, AreNamedWhereTheLineWasFiniteBefore) {
  const Finding f = log_of_evaluations(2, "parameter");
  EXPECT_EQ(f.cause_class, "log-of-negative");
  EXPECT_NE(f.text.find("in 2 earlier evaluations within the same step it was finite"), std::string::npos) << f.text;
  EXPECT_EQ(f.fix_text.find("shorter steps of the optimizer: a smaller lr"), 0u) << f.fix_text;
  EXPECT_NE(f.fix_text.find("; or clamp"), std::string::npos) << f.fix_text;
}

TEST(OwnSteps, AreNotNamedOfAFirstEvaluationAnotherLineOrMicroBatches) {
  for (const Finding& f : {log_of_evaluations(0, "parameter"), log_of_evaluations(2, "parameter", false),
                           log_of_evaluations(2, "gradient")})
    EXPECT_EQ(f.text.find("earlier evaluation"), std::string::npos) << f.text;
}

}  // namespace
}  // namespace finitude::explain
