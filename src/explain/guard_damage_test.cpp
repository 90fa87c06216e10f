#include "explain/guard_damage.h"

#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::GuardDamage;

struct Step {
  TraceBuilder b;
  record::OpId norm = 0, add = 0, linear = 0;
  Step() {
    const auto h = b.tensor({1, 2}), g = b.tensor({1, 2});
    norm = b.op("aten::layer_norm", {{"input", h}}, {g});
    add = b.op("aten::add", {{"self", h}}, {b.tensor({2, 3})});
    linear = b.op("aten::linear", {{"input", g}}, {b.tensor({4})});
  }
  std::string text(const GuardDamage& damage) const { return finding_of_damage({damage}, b.trace).value().text; }
};

GuardDamage behind(record::OpId made_in, record::OpId seen_at, bool at_end) {
  GuardDamage damage;
  damage.size_bytes = 2048;
  damage.first = 2048;
  damage.end = 2056;
  damage.made_in = made_in;
  damage.seen_at = seen_at;
  damage.seen_at_end = at_end;
  return damage;
}

TEST(GuardDamage, NoDamageExplainsNothing) { EXPECT_FALSE(finding_of_damage({}, Step().b.trace)); }

TEST(GuardDamage, OwnerAndMomentAreNamed) {
  const Step step;
  const auto found = finding_of_damage({behind(step.norm, step.linear, false)}, step.b.trace).value();
  EXPECT_EQ(found.cause_class, "memory-corruption");
  EXPECT_EQ(found.born_in, step.linear);
  EXPECT_EQ(found.text,
            "8 bytes were written from byte 0 behind the end of the result of aten::layer_norm at model.py:1 (2,048 "
            "bytes), after aten::add at model.py:2 and before aten::linear at model.py:3, by code that is no operator");
}

TEST(GuardDamage, OperatorThatRanMeanwhileIsNamed) {
  const Step step;
  EXPECT_TRUE(step.text(behind(step.norm, step.add, true)).ends_with(", while aten::add at model.py:2 ran"));
}

TEST(GuardDamage, WriteAfterFree) {
  const Step step;
  GuardDamage damage = behind(record::kNone, step.norm, false);
  damage.where = GuardDamage::kFreed;
  damage.first = 16;
  damage.end = 17;
  damage.freed_in = step.add;
  EXPECT_EQ(step.text(damage),
            "1 byte was written, from byte 16, into memory that had been given back: a tensor from before the step "
            "(2,048 bytes), before aten::layer_norm at model.py:1, the first of the step; it was given back in "
            "aten::add at model.py:2");
}

}  // namespace
}  // namespace finitude::explain
