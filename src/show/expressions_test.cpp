// What a division divides by, as its line has it.
#include "show/expressions.h"

#include <fstream>

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::show {
namespace {

std::string divisor_of_line(const std::string& line, bool has_columns = true) {
  const std::string file = testing::TempDir() + "finitude_expressions_test.py";
  std::ofstream(file) << line << "\n";
  explain::TraceBuilder b;
  b.trace.stacks = {
      {{{file, 1, "f", -1, has_columns ? 0 : -1, 1, has_columns ? static_cast<int>(line.size()) : -1}}, "", ""}};
  const auto id = b.op("aten::div", {{"self", b.tensor({1})}, {"other", b.integer()}}, {b.tensor({INFINITY})});
  b.trace.ops[id].stack = 0;
  return divisor_of(b.trace, id);
}

TEST(Expressions, DivisorIsConstantOrNamedByTheLine) {
  for (const char* line : {"x / 0", "x /= 0", "(a / b) / 0.0", "f(x)/(0 if i > 5 else 1)", "x / (1 if a else 0.)"})
    EXPECT_EQ(divisor_of_line(line), kConstantZero) << line;
  EXPECT_EQ(divisor_of_line("x / n"), "n");
  EXPECT_EQ(divisor_of_line("x // len(a[i / 2])"), "len(a[i / 2])");
  EXPECT_EQ(divisor_of_line("x / 10"), "10");
  for (const char* line : {"torch.div(x, 0)", "x.div(y / 0)", "f('a/b')"}) EXPECT_EQ(divisor_of_line(line), "") << line;
  EXPECT_EQ(divisor_of_line("x / 0", false), "");
}

}  // namespace
}  // namespace finitude::show
