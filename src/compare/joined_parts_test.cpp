// Dumps of several ranks as one.
#include "compare/joined_parts.h"

#include <gtest/gtest.h>

#include <cstring>

namespace finitude::compare {
namespace {

using Numbers = std::vector<float>;

std::string bytes_of(const Numbers& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

// A dump of one rank, built call by call.
class Rank {
 public:
  Rank& call(const std::string& module, const Numbers& output, std::vector<std::int64_t> shape,
             const std::string& phase = "forward") {
    Record record;
    record.module = module;
    record.op = "Linear";
    record.phase = phase;
    record.call = calls_[phase + module]++;
    RecordValue value;
    value.arg = "output";
    value.element = element_of_name("float32");
    value.shape = std::move(shape);
    value.key = phase + module + std::to_string(record.call);
    for (const float number : output) {
      value.health.sum_sq += double{number} * number;
      value.health.absmax = std::max(value.health.absmax, std::abs(double{number}));
    }
    value.health.numel = output.size();
    value.checksum = "bits";
    for (const float number : output) value.checksum += std::to_string(number);
    dump_.values.put(value.key, bytes_of(output));
    record.outputs.push_back(std::move(value));
    dump_.records.push_back(std::move(record));
    return *this;
  }
  // The last value is a part of a DTensor.
  Rank& placed(std::vector<std::int64_t> whole, std::vector<std::int64_t> begins, bool is_partial = false) {
    RecordValue& value = dump_.records.back().outputs[0];
    value.full_shape = std::move(whole);
    value.begins = std::move(begins);
    value.is_partial = is_partial;
    return *this;
  }
  operator Dump() const { return dump_; }  // NOLINT(google-explicit-constructor)

 private:
  Dump dump_;
  std::map<std::string, std::uint64_t> calls_;
};

const Record* record_of(const Dump& dump, const std::string& module) {
  for (const Record& record : dump.records) {
    if (record.module == module) return &record;
  }
  return nullptr;
}

Numbers numbers_of(const Dump& dump, const std::string& module) {
  const Record* record = record_of(dump, module);
  std::string bytes;
  if (record == nullptr || record->outputs.empty() || !dump.values.read(record->outputs[0], &bytes)) return {};
  Numbers numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

const NameMap kNoMap;

TEST(JoinedParts, ColumnsOfTwoRanksByTheShapeOfTheOther) {
  const Dump whole = Rank().call("Net.up", {1, 2, 3, 4}, {2, 2});
  const Dump left = Rank().call("Net.up", {1, 3}, {2, 1}), right = Rank().call("Net.up", {2, 4}, {2, 1});
  const JoinedSides sides = join_parts({left, right}, {whole}, kNoMap);
  EXPECT_EQ(numbers_of(sides.a.dump, "Net.up"), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(numbers_of(sides.b.dump, "Net.up"), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(sides.a.counts.joined, 1U);
  EXPECT_EQ(sides.b.counts.joined + sides.b.counts.unjoined, 0U);
  EXPECT_DOUBLE_EQ(record_of(sides.a.dump, "Net.up")->outputs[0].health.sum_sq, 30);
}

TEST(JoinedParts, PartsOfADTensorSayWhereTheyBegin) {  // ranks in any order
  const Dump second = Rank().call("Net.up", {3, 4}, {2}).placed({4}, {2});
  const Dump first = Rank().call("Net.up", {1, 2}, {2}).placed({4}, {0});
  const JoinedSides sides = join_parts({second, first}, {Rank().call("Net.other", {0}, {1})}, kNoMap);
  EXPECT_EQ(numbers_of(sides.a.dump, "Net.up"), (Numbers{1, 2, 3, 4}));
}

TEST(JoinedParts, PartsThatLeaveAGapAreNotCompared) {
  const Dump first = Rank().call("Net.up", {1, 2}, {2}).placed({4}, {0});
  const Dump beyond = Rank().call("Net.up", {1, 2}, {2}).placed({4}, {3});
  const Dump sum = Rank().call("Net.up", {1, 2, 3, 4}, {4}).placed({4}, {}, true);
  for (const Dump& other : {first, beyond, sum}) {
    const JoinedSides sides = join_parts({other, first}, {first}, kNoMap);
    EXPECT_EQ(sides.a.counts.unjoined, 1U);
    EXPECT_TRUE(record_of(sides.a.dump, "Net.up")->outputs.empty());
  }
}

TEST(JoinedParts, SummandsOfRanksAreAdded) {
  const Dump first = Rank().call("Net.down", {1, 2}, {2}).placed({2}, {}, true);
  const Dump second = Rank().call("Net.down", {0.5, -3}, {2}).placed({2}, {}, true);
  const Dump whole = Rank().call("Net.down", {1.5, -1}, {2});
  const JoinedSides sides = join_parts({first, second}, {whole}, kNoMap);
  const RecordValue& sum = record_of(sides.a.dump, "Net.down")->outputs[0];
  std::string bytes;
  ASSERT_TRUE(sides.a.dump.values.read(sum, &bytes));
  EXPECT_EQ(decode(bytes.data(), sum.element.number, 0), 1.5);
  EXPECT_EQ(decode(bytes.data(), sum.element.number, 1), -1);
  EXPECT_EQ(sides.a.counts.joined, 1U);
  EXPECT_DOUBLE_EQ(sum.health.sum_sq, 3.25);
  EXPECT_DOUBLE_EQ(sum.health.absmax, 1.5);
}

TEST(JoinedParts, SummandsThatMayBeReplicasAreNotAdded) {
  const Dump first = Rank().call("Net.down", {1, 2}, {2}).placed({2}, {}, true);
  const Dump second = Rank().call("Net.down", {3, 4}, {2}).placed({2}, {}, true);
  const JoinedSides sides = join_parts({first, second, first, second}, {first}, kNoMap);
  EXPECT_EQ(sides.a.counts.unjoined, 1U);
  EXPECT_TRUE(record_of(sides.a.dump, "Net.down")->outputs.empty());
}

TEST(JoinedParts, ReplicasOfAPartCountOnce) {  // two replicas of two columns
  const Dump whole = Rank().call("Net.up", {1, 2, 3, 4}, {2, 2});
  const Dump left = Rank().call("Net.up", {1, 3}, {2, 1}), right = Rank().call("Net.up", {2, 4}, {2, 1});
  const JoinedSides sides = join_parts({left, right, left, right}, {whole}, kNoMap);
  EXPECT_EQ(numbers_of(sides.a.dump, "Net.up"), (Numbers{1, 2, 3, 4}));
}

TEST(JoinedParts, MicroBatchesAreRowsAndTheirGradientsAreNotCompared) {
  const Dump whole = Rank().call("Net.up", {1, 2, 3, 4}, {4}).call("Net.up", {1, 1, 1, 1}, {4}, "backward");
  const Dump two = Rank()
                       .call("Net.up", {0, 0}, {2})  // which finds shapes
                       .call("Net.up", {1, 2}, {2})
                       .call("Net.up", {3, 4}, {2})
                       .call("Net.up", {2, 2}, {2}, "backward")
                       .call("Net.up", {2, 3}, {2}, "backward");
  const JoinedSides sides = join_parts({whole}, {two}, kNoMap);
  EXPECT_EQ(numbers_of(sides.b.dump, "Net.up"), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(sides.a.dump.records.size(), 1U);
  EXPECT_EQ(sides.b.dump.records.size(), 1U);
  EXPECT_EQ(sides.b.counts.skipped, 1U);
}

TEST(JoinedParts, StagesOfAPipelineAreNoWhole) {
  const Dump whole = Rank().call("Net.a", {1}, {1}).call("Net.b", {2}, {1}).call("Net", {2}, {1});
  const Dump first = Rank().call("Stage.a", {1}, {1}).call("Stage", {1}, {1});
  const Dump second = Rank().call("Stage.b", {2}, {1}).call("Stage", {2}, {1});
  const JoinedSides sides = join_parts({whole}, {first, second}, kNoMap);
  EXPECT_EQ(sides.b.dump.records.size(), 2U);
  EXPECT_EQ(record_of(sides.a.dump, "Net"), nullptr);
  EXPECT_EQ(record_of(sides.b.dump, "Stage"), nullptr);
  EXPECT_NE(record_of(sides.b.dump, "Stage.b"), nullptr);
}

TEST(JoinedParts, NamesAreThoseOfTheMap) {
  const Dump whole = Rank().call("Net.up", {1, 2}, {2});
  const Dump one = Rank().call("Net.wide", {1}, {1}), two = Rank().call("Net.wide", {2}, {1});
  const auto map = parse_name_map("up = wide");
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(numbers_of(join_parts({whole}, {one, two}, *map).b.dump, "Net.wide"), (Numbers{1, 2}));
  const auto back = parse_name_map("wide = up");
  EXPECT_EQ(numbers_of(join_parts({one, two}, {whole}, *back).a.dump, "Net.wide"), (Numbers{1, 2}));
}

TEST(JoinedParts, TheFirstOfRanksThatDiffer) {
  const Dump one = Rank().call("Net.up", {1, 2}, {2}), other = Rank().call("Net.up", {1, 3}, {2});
  const JoinedSides sides = join_parts({one, other}, {one}, kNoMap);
  EXPECT_EQ(numbers_of(sides.a.dump, "Net.up"), (Numbers{1, 2}));
  EXPECT_EQ(sides.a.counts.other, 1U);
}

}  // namespace
}  // namespace finitude::compare
