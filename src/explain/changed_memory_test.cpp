#include "explain/changed_memory.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"
#include "record/unseen_write.h"

namespace finitude::explain {
namespace {

record::ScalarUse number(std::string_view name, double value) { return {std::string(name), "", value, false}; }

// A step in which four bytes of what aten::layer_norm gave change before aten::linear reads them.
struct ChangedStep {
  TraceBuilder b;
  record::OpId change = 0;
  record::StorageId table = 0, norm = 0, freed = 0;

  ChangedStep() {
    const auto t = b.tensor({1, 2}), f = b.tensor({1, 2}), g = b.tensor({1, 2});
    table = t.storage, freed = f.storage, norm = g.storage;
    b.op("aten::ones", {}, {t});
    b.op("aten::sin", {{"self", t}}, {f});
    b.op("aten::cos", {{"self", f}}, {b.tensor({3, 4})});
    b.op("aten::layer_norm", {{"input", t}}, {g});
    change = b.op(std::string(record::kUnseenWrite), {{"", g}}, {TraceBuilder::holding(g, {1, 9e30})},
                  {number(record::kChangedBytes, 4), number(record::kFirstByte, 4), number(record::kEndByte, 8)});
    b.op("aten::linear", {{"input", TraceBuilder::holding(g, {1, 9e30})}}, {b.tensor({5})});
    place(table, 0x1000, 0x40);
    place(norm, 0x1080, 0x40);
    place(freed, 0x1080, 0x40);
    b.trace.storages[freed].freed_before = change;
    b.trace.freed_asked_at = {change};
  }
  void place(record::StorageId id, std::uint64_t address, std::int64_t size_bytes) {
    b.trace.storages[id].address = address;
    b.trace.storages[id].size_bytes = size_bytes;
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const Experiment& line : around_change(b.trace, change)) {
      EXPECT_FALSE(line.predicted);
      lines.push_back(line.name + ": " + line.outcome);
    }
    return lines;
  }
};

TEST(ChangedMemory, NeighbourAndEarlierOwnerAreNamed) {
  EXPECT_EQ(
      ChangedStep().lines(),
      (std::vector<std::string>{
          "address: 0x1084",
          "before that tensor, 64 bytes away: the result of aten::ones at model.py:1 (64 bytes), still in use",
          "had that memory before: the result of aten::sin at model.py:2 (64 bytes), given back by then; last used "
          "by aten::cos at model.py:3"}));
}

TEST(ChangedMemory, NamedMemoryHasItsName) {
  ChangedStep step;
  step.b.trace.storages[step.table].name = "head.weight";
  step.b.trace.storages[step.table].origin = record::Origin::kParameter;
  EXPECT_EQ(step.lines()[1], "before that tensor, 64 bytes away: the parameter head.weight (64 bytes), still in use");
}

TEST(ChangedMemory, UnknownPlaceSaysNothing) {
  ChangedStep step;
  step.place(step.norm, 0, 0);
  EXPECT_TRUE(step.lines().empty());
}

TEST(ChangedMemory, BytesAndTheirBlocks) {
  const struct {
    double bytes, first, end;
    const char* text;
  } cases[] = {
      {2048, 0, 2048,
       "2,048 bytes changed between writer and reader (bytes 0 to 2,047 of 8, without a gap; a multiple "
       "of 2,048)"},
      {512, 512, 1024,
       "512 bytes changed between writer and reader (bytes 512 to 1,023 of 8, without a gap; a multiple "
       "of 512)"},
      {8, 0, 100, "8 bytes changed between writer and reader (bytes 0 to 99 of 8, with gaps)"},
  };
  for (const auto& c : cases) {
    ChangedStep step;
    record::Op& op = step.b.trace.ops[step.change];
    op.scalars = {number(record::kChangedBytes, c.bytes), number(record::kFirstByte, c.first),
                  number(record::kEndByte, c.end)};
    EXPECT_EQ(changed_bytes(op), c.text);
  }
}

}  // namespace
}  // namespace finitude::explain
