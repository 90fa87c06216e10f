#include "explain/layers.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

// Products one behind the other, each in a module of its own; the last one overflows.
std::string reported(const std::vector<double>& sizes, const std::string& stack) {
  TraceBuilder b;
  record::TensorUse at = b.tensor({1, 1});
  const auto in_module = [&](record::OpId id, std::size_t layer) {
    b.trace.stacks[b.trace.ops[id].stack].module = stack + std::to_string(layer);
  };
  std::size_t layer = 0;
  for (const double size : sizes) {
    const auto next = b.tensor({size, size});
    in_module(b.op("aten::mul", {{"self", at}, {"other", b.number(60)}}, {next}), layer++);
    at = next;
  }
  const auto last = b.op("aten::mul", {{"self", at}, {"other", b.number(1e30)}}, {b.tensor({kInf, kInf})});
  in_module(last, layer);
  b.born(last);
  return b.explained().text;
}

TEST(Layers, LayersAreNamedWithTheirFactor) {
  const std::string text = reported({1, 60, 3600, 216000, 1.3e7, 1e15}, "Net.blocks.");
  EXPECT_NE(text.find("; the norm of the values grew x1e+03 a layer over 5 layers (Net.blocks.1 to Net.blocks.5), from "
                      "1.41421 to 1.414e+15"),
            std::string::npos)
      << text;
}

TEST(Layers, OneThatDoesMostOfItIsNamed) {
  const std::string text = reported({1, 2, 4, 8e12, 1.6e13}, "Net.");
  EXPECT_NE(text.find("most of it in Net.3 (x2.0e+12)"), std::string::npos) << text;
}

TEST(Layers, IterationsOverOneLineOrModule) {
  for (const std::string module : {"", "Net.cell"}) {
    TraceBuilder b;
    record::TensorUse at = b.tensor({1, 1});
    const auto multiply = [&](double other, double result) {
      const auto next = b.tensor({result, result});
      const auto id = b.op("aten::mul", {{"self", at}, {"other", b.number(other)}}, {next});
      record::Stack& stack = b.trace.stacks[b.trace.ops[id].stack];
      stack.module = module;
      stack.frames.front().line = 9;
      at = next;
      return id;
    };
    for (const double size : {1.0, 60.0, 3600.0, 216000.0, 1.3e7}) multiply(60, size);
    b.born(multiply(1e32, kInf));
    const std::string text = b.explained().text;
    EXPECT_NE(text.find("; the norm of the values grew x60 an iteration over 4 iterations of " +
                        (module.empty() ? std::string("model.py:9") : module)),
              std::string::npos)
        << text;
  }
}

TEST(Layers, NothingIsSaidWhereNothingGrew) {
  EXPECT_EQ(reported({1e20, 1e19, 1e20, 1e19, 1e20}, "Net.").find("a layer"), std::string::npos);
  EXPECT_EQ(reported({1, 1e12}, "Net.").find("a layer"), std::string::npos);
  EXPECT_EQ(reported({1, 60, 3600, 216000, 1.3e7}, "Net.blocks.3.").find("a layer"),
            std::string::npos);  // all of them in one block
}

}  // namespace
}  // namespace finitude::explain
