#include "replay/carried_rows.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "capture/testing.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::Storage;
using capture::Tape;
using capture::tensor_value;
using capture::Value;

// A tape on which storages are made as they are named: number, then elements.
struct Steps {
  Tape tape;

  void storage(std::uint64_t floats) {
    Storage out;
    out.size_bytes = 4 * floats;
    tape.storages.push_back(std::move(out));
  }
  std::size_t call(const std::string& name, std::vector<Value> args, std::vector<Value> results) {
    tape.operators.push_back({name, ""});
    Entry entry;
    entry.number = static_cast<std::uint32_t>(tape.operators.size() - 1);
    entry.args = std::move(args);
    entry.results = std::move(results);
    tape.entries.push_back(std::move(entry));
    return tape.entries.size() - 1;
  }
};

BatchInput input(capture::StorageId storage, std::size_t row_bytes, std::size_t read_at) {
  BatchInput out;
  out.storage = storage;
  out.row_bytes = row_bytes;
  out.item_bytes = 4;
  out.read_at = read_at;
  return out;
}

// 0: [6,4] the batch, 1: [5,4] a weight, 2: [6,5] their product, 3: [6,5], 4: [30] as [6,5], 5: [1]
Steps linear() {
  Steps s;
  for (const std::uint64_t n : {24, 20, 30, 30, 30, 1}) s.storage(n);
  s.call("aten::addmm", {tensor_value(5, {1}), tensor_value(0, {6, 4}), tensor_value(1, {4, 5})},
         {tensor_value(2, {6, 5})});
  s.call("aten::exp", {tensor_value(2, {6, 5})}, {tensor_value(3, {6, 5})});
  s.call("aten::log", {tensor_value(3, {30})}, {tensor_value(4, {30})});
  s.call("aten::sum", {tensor_value(4, {30})}, {tensor_value(5, {})});
  s.call("aten::log", {tensor_value(5, {})}, {tensor_value(5, {})});
  return s;
}

TEST(CarriedRows, GoThroughAProductAndASum) {
  const Steps s = linear();
  EXPECT_EQ(rows_reach(s.tape, {input(0, 16, 0)}, 6, 1), Reach::kRows);
  EXPECT_EQ(rows_reach(s.tape, {input(0, 16, 0)}, 6, 2), Reach::kRows);  // five of each, one after the other
  EXPECT_EQ(rows_reach(s.tape, {input(0, 16, 0)}, 6, 4), Reach::kNot);   // summed over
}

TEST(CarriedRows, OfAWeightAreFeatures) {
  const Steps s = linear();
  EXPECT_EQ(rows_reach(s.tape, {input(1, 16, 0)}, 5, 1), Reach::kNot);
}

TEST(CarriedRows, ElementsOfARowVectorAreFeatures) {
  Steps s;
  for (const std::uint64_t n : {4, 48, 48, 48}) s.storage(n);
  s.call("aten::copy_", {tensor_value(1, {4}, 16), tensor_value(0, {4})}, {tensor_value(1, {4}, 16)});
  const auto exp = s.call("aten::exp", {tensor_value(1, {12, 4})}, {tensor_value(2, {12, 4})});
  EXPECT_EQ(rows_reach(s.tape, {input(0, 4, 0)}, 4, exp), Reach::kNot);
  const auto added = s.call("aten::add", {tensor_value(2, {12, 4}), tensor_value(0, {4})}, {tensor_value(3, {12, 4})});
  const auto log = s.call("aten::log", {tensor_value(3, {12, 4})}, {tensor_value(2, {12, 4})});
  EXPECT_EQ(rows_reach(s.tape, {input(0, 4, 0)}, 4, log), Reach::kNot) << added;
}

TEST(CarriedRows, AreTakenOutOfADataSet) {
  Steps s;
  for (const std::uint64_t n : {40, 6, 24, 24}) s.storage(n);
  s.call("aten::index", {tensor_value(0, {10, 4}), tensor_value(1, {6})}, {tensor_value(2, {6, 4})});
  const auto log = s.call("aten::log", {tensor_value(2, {6, 4})}, {tensor_value(3, {6, 4})});
  EXPECT_EQ(rows_reach(s.tape, {input(0, 16, 0)}, 10, log), Reach::kTaken);
  const auto slice = s.call("aten::log", {tensor_value(0, {6, 4}, 16)}, {tensor_value(3, {6, 4})});
  EXPECT_EQ(rows_reach(s.tape, {input(0, 16, 0)}, 10, slice), Reach::kTaken);
  const auto one = s.call("aten::log", {tensor_value(0, {4}, 16)}, {tensor_value(3, {4})});
  const auto next = s.call("aten::log", {tensor_value(3, {4})}, {tensor_value(3, {4})});
  EXPECT_NE(rows_reach(s.tape, {input(0, 16, one)}, 10, next), Reach::kRows);
}

TEST(CarriedRows, ArePutTogetherAfterTheBirth) {
  Steps s;
  for (const std::uint64_t n : {1, 1, 40, 40}) s.storage(n);
  const auto birth = s.call("aten::log", {tensor_value(0, {})}, {tensor_value(1, {})});
  s.call("aten::copy_", {tensor_value(2, {}, 6), tensor_value(1, {})}, {tensor_value(2, {}, 6)});
  const auto reader = s.call("aten::exp", {tensor_value(2, {10, 4})}, {tensor_value(3, {10, 4})});
  EXPECT_EQ(rows_reach(s.tape, {input(2, 16, reader)}, 10, birth), Reach::kRows);
  EXPECT_EQ(rows_reach(s.tape, {input(0, 4, birth)}, 1, reader), Reach::kNot);
}

TEST(CarriedRows, StayApartUnderHeads) {
  Steps s;
  for (const std::uint64_t n : {24, 24, 24}) s.storage(n);
  Value turned = tensor_value(0, {2, 3, 4});  // [2 samples, 4 steps of 3] with steps first
  turned.tensors[0].sizes = {4, 2, 3};
  turned.tensors[0].strides = {3, 12, 1};
  s.call("aten::clone", {turned}, {tensor_value(1, {4, 2, 3})});
  const auto exp = s.call("aten::exp", {tensor_value(1, {8, 3})}, {tensor_value(2, {8, 3})});
  EXPECT_EQ(rows_reach(s.tape, {input(0, 48, 0)}, 2, exp), Reach::kRows);
}

// 0: [8,5] the batch, 1: [5,8] a weight, 2: [8,8] logits, 3: [8] a number for each class, 4: [8] its log, 5: [8,8]
Steps classes() {
  Steps s;
  for (const std::uint64_t n : {40, 40, 64, 8, 8, 64, 1}) s.storage(n);
  s.call("aten::addmm", {tensor_value(6, {1}), tensor_value(0, {8, 5}), tensor_value(1, {5, 8})},
         {tensor_value(2, {8, 8})});
  s.call("aten::log", {tensor_value(3, {8})}, {tensor_value(4, {8})});
  return s;
}

TEST(CarriedRows, OfANumberForEachClassLieAcross) {
  Steps s = classes();
  s.call("aten::mul", {tensor_value(2, {8, 8}), tensor_value(4, {8})}, {tensor_value(5, {8, 8})});
  const std::vector<std::pair<std::int64_t, BatchInput>> all{{8, input(0, 20, 0)}, {8, input(3, 4, 1)}};
  EXPECT_EQ(lie_crosswise(s.tape, {all[0].second, all[1].second}, 8, all), (std::vector<bool>{false, true}));
}

TEST(CarriedRows, OfANumberForEachSampleDoNot) {
  Steps s = classes();
  s.call("aten::mul", {tensor_value(2, {8, 8}), tensor_value(4, {8, 1})}, {tensor_value(5, {8, 8})});
  const std::vector<std::pair<std::int64_t, BatchInput>> all{{8, input(0, 20, 0)}, {8, input(3, 4, 1)}};
  EXPECT_EQ(lie_crosswise(s.tape, {all[0].second, all[1].second}, 8, all), (std::vector<bool>{false, false}));
}

TEST(CarriedRows, LieAcrossWhatIsTakenOutOfADataSet) {
  Steps s;
  for (const std::uint64_t n : {160, 8, 8, 64}) s.storage(n);  // [20,8]; a number for each feature; its log
  s.call("aten::log", {tensor_value(1, {8})}, {tensor_value(2, {8})});
  s.call("aten::mul", {tensor_value(0, {8, 8}, 16), tensor_value(2, {8})}, {tensor_value(3, {8, 8})});
  EXPECT_EQ(lie_crosswise(s.tape, {input(1, 4, 0)}, 8, {{20, input(0, 32, 1)}}), (std::vector<bool>{true}));
}

TEST(CarriedRows, GivenByALoaderAreNotSetAside) {
  Steps s = classes();
  s.call("aten::mul", {tensor_value(2, {8, 8}), tensor_value(4, {8})}, {tensor_value(5, {8, 8})});
  BatchInput labels = input(3, 4, 1);
  labels.loaded = true;
  EXPECT_EQ(lie_crosswise(s.tape, {labels}, 8, {{8, input(0, 20, 0)}}), (std::vector<bool>{false}));
}

}  // namespace
}  // namespace finitude::replay
