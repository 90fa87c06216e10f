#include "show/exchanges.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace finitude::show {
namespace {

using nlohmann::json;

record::Op exchange(const char* name, const char* group, bool is_bad = false, record::OpId parent = record::kNone) {
  record::Op op;
  op.name = name;
  op.parent = parent;
  op.scalars = {{op.name.starts_with("c10d::") ? "process_group" : "group_name", group, std::nullopt, false}};
  record::TensorUse use;
  use.arg = "tensors";
  use.health.numel = 2;
  use.health.nan = is_bad ? 1 : 0;
  op.inputs = {use};
  return op;
}

record::Trace trace_of(bool is_bad) {
  record::Trace trace;
  record::Op log, wait;
  log.name = "aten::log";
  wait = exchange("_c10d_functional::wait_tensor", "");
  trace.ops = {exchange("c10d::allreduce_", "0"),
               log,
               exchange("_c10d_functional::all_reduce", "1", is_bad),
               exchange("c10d::allreduce_", "1", is_bad, 2),
               wait,
               exchange("c10d::send", "0", is_bad),
               exchange("c10d::allreduce_", "0", is_bad)};
  return trace;
}

TEST(Exchanges, ARankNamesThoseThatItGaveABadValue) {
  EXPECT_EQ(exchanges(trace_of(true), 1), json::parse(R"([{"group": "1", "number": 0}, {"group": "0", "number": 1}])"));
  EXPECT_EQ(exchanges(trace_of(false), 1), json::array());
  EXPECT_EQ(exchanges(trace_of(false), record::kNone), json::array());
}

TEST(Exchanges, OfAReceiverItIsTheCallThatBroughtTheValue) {
  const json outer = json::parse(R"([{"group": "1", "number": 0}])");
  EXPECT_EQ(exchanges(trace_of(false), 2), outer);
  EXPECT_EQ(exchanges(trace_of(false), 3), outer);
  EXPECT_EQ(exchanges(trace_of(false), 6), json::parse(R"([{"group": "0", "number": 1}])"));
}

TEST(Exchanges, TheSenderIsNamedWhereTheCallSaysIt) {
  record::Trace trace;
  for (const char* name : {"c10d::recv_", "c10d::broadcast_", "c10d::reduce_"}) {
    trace.ops.push_back(exchange(name, "0"));
    trace.ops.back().scalars.push_back({trace.ops.size() == 1 ? "src" : "root_rank", "3", 3.0, false});
  }
  EXPECT_EQ(exchanges(trace, 0), json::parse(R"([{"group": "0", "root": 3}])"));
  EXPECT_EQ(exchanges(trace, 1), json::parse(R"([{"group": "0", "number": 0, "root": 3}])"));
  EXPECT_EQ(exchanges(trace, 2), json::parse(R"([{"group": "0", "number": 1}])"));
}

}  // namespace
}  // namespace finitude::show
