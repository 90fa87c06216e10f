#include "locate/flows_on.h"

#include <gtest/gtest.h>

#include "locate/testing.h"

namespace finitude::locate {
namespace {

using record::OpId;
using testing::Tensor;
using testing::TraceBuilder;

// loss, alphas = _ctc_loss(x) inside ctc_loss, which gives the loss alone.
TEST(FlowsOn, NotesReadByTheirOwnNodeDoNot) {
  for (const bool read : {false, true}) {
    TraceBuilder b;
    const Tensor x = b.storage(), loss = b.storage(), alphas = b.storage(), gradient = b.storage(), other = b.storage();
    OpId inner, outer;
    {
      auto call = b.op("aten::ctc_loss");
      call.in(x);
      inner = b.op("aten::_ctc_loss").in(x).out(loss).out(alphas).end();
      call.out(loss);
      outer = call.end();
    }
    if (read) b.op("aten::sum").in(alphas).out(other).end();
    {
      auto node = b.node("CtcLossBackward0");
      node.forward(inner);
      b.op("aten::_ctc_loss_backward").in(loss).in(alphas).out(gradient).end();
    }
    EXPECT_TRUE(flows_on(b.trace, inner, 0));
    EXPECT_EQ(flows_on(b.trace, inner, 1), read);
    EXPECT_TRUE(flows_on(b.trace, outer, 0));
  }
}

TEST(FlowsOn, WhatTheProgramGetsDoes) {
  TraceBuilder b;
  const Tensor x = b.storage(), values = b.storage(), places = b.storage();
  const OpId max = b.op("aten::max").in(x).out(values).out(places).end();
  EXPECT_TRUE(flows_on(b.trace, max, 1));
}

}  // namespace
}  // namespace finitude::locate
