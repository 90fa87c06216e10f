#include "replay/batch_inputs.h"

#include <gtest/gtest.h>

#include <string>

#include "capture/testing.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::Storage;
using capture::Tape;
using capture::tensor_value;
using capture::Value;

Entry call(std::uint32_t op, std::vector<Value> args, std::vector<Value> results) {
  Entry entry;
  entry.number = op;
  entry.args = std::move(args);
  entry.results = std::move(results);
  return entry;
}

Storage storage(Storage::Origin origin, std::uint64_t floats, std::string kind = "") {
  Storage out;
  out.origin = origin;
  out.size_bytes = 4 * floats;
  out.kind = std::move(kind);
  if (origin == Storage::kInput) out.bytes.resize(out.size_bytes);
  return out;
}

enum : std::uint32_t { kRandn, kFill, kMul, kEmptyLike, kNormal };

// 0: weight [5,3]. 1: labels [5], given. 2: drawn [5,3], then filled in part. 3: product of 0 and 2. 4: like 3.
Tape tape() {
  Tape tape;
  tape.operators = {{"aten::randn", ""},
                    {"aten::fill_", "Scalar"},
                    {"aten::mul", "Tensor"},
                    {"aten::empty_like", ""},
                    {"aten::normal_", ""}};
  tape.storages = {storage(Storage::kInput, 15, "parameter"), storage(Storage::kInput, 5),
                   storage(Storage::kProduced, 15), storage(Storage::kProduced, 15), storage(Storage::kProduced, 15)};
  tape.entries = {call(kRandn, {}, {tensor_value(2, {5, 3})}),
                  call(kFill, {tensor_value(2, {3}, 12)}, {tensor_value(2, {3}, 12)}),
                  call(kMul, {tensor_value(0, {5, 3}), tensor_value(2, {5, 3})}, {tensor_value(3, {5, 3})}),
                  call(kMul, {tensor_value(3, {5, 3}), tensor_value(1, {5, 1})}, {tensor_value(3, {5, 3})})};
  return tape;
}

TEST(BatchInputs, AreGivenOrMadeOfNothing) {
  const auto found = batch_inputs(tape());
  ASSERT_EQ(found.size(), 1u);
  const auto& inputs = found.at(5);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].storage, 2u);
  EXPECT_EQ(inputs[0].read_at, 2u);  // not where it is filled
  EXPECT_EQ(inputs[0].arg, 1u);
  EXPECT_EQ(inputs[0].row_bytes, 12u);
  EXPECT_EQ(inputs[1].storage, 1u);
  EXPECT_EQ(inputs[1].read_at, 3u);
  EXPECT_EQ(inputs[1].row_bytes, 4u);
}

TEST(BatchInputs, EmptyLikeHasNoInputsUntilWritten) {
  for (const bool computed : {false, true}) {
    Tape t = tape();
    t.entries.resize(3);
    t.entries.push_back(call(kEmptyLike, {tensor_value(3, {5, 3})}, {tensor_value(4, {5, 3})}));
    t.entries.push_back(computed
                            ? call(kMul, {tensor_value(4, {5, 3}), tensor_value(3, {5, 3})}, {tensor_value(4, {5, 3})})
                            : call(kNormal, {tensor_value(4, {5, 3})}, {tensor_value(4, {5, 3})}));
    t.entries.push_back(call(kMul, {tensor_value(4, {5, 3}), tensor_value(3, {5, 3})}, {tensor_value(3, {5, 3})}));
    std::size_t made = 0;
    const auto found = batch_inputs(t);
    for (const BatchInput& input : found.at(5)) made += input.storage == 4;
    EXPECT_EQ(made, computed ? 0u : 1u);
  }
}

// count = torch.zeros(5).index_add_(0, group, torch.ones(9)): a row for each group.
TEST(BatchInputs, GroupsThatAreSummedIntoAreNone) {
  for (const char* name : {"aten::mul_", "aten::index_add_", "aten::scatter_add_", "aten::index_reduce_"}) {
    for (const int dim : {0, -2, 1}) {
      Tape t;
      t.operators = {{"aten::zeros", ""}, {name, ""}, {"aten::div", "Tensor"}};
      t.storages = {storage(Storage::kProduced, 15), storage(Storage::kProduced, 15)};
      t.entries = {call(0, {}, {tensor_value(0, {5, 3})}),
                   call(1, {tensor_value(0, {5, 3}), capture::int_value(dim)}, {tensor_value(0, {5, 3})}),
                   call(2, {tensor_value(1, {5, 3}), tensor_value(0, {5, 3})}, {tensor_value(1, {5, 3})})};
      const bool is_batch = std::string(name) == "aten::mul_" || dim == 1;
      EXPECT_EQ(batch_inputs(t).count(5), is_batch ? 1u : 0u) << name << dim;
    }
  }
}

TEST(BatchInputs, RowsOfAnIdentityMatrixAreNone) {
  for (const char* name : {"aten::eye", "aten::ones"}) {
    Tape t;
    t.operators = {{name, ""}, {"aten::mul", "Tensor"}};
    t.storages = {storage(Storage::kProduced, 9), storage(Storage::kProduced, 9)};
    t.entries = {call(0, {}, {tensor_value(0, {3, 3})}),
                 call(1, {tensor_value(0, {3, 3}), tensor_value(0, {3, 3})}, {tensor_value(1, {3, 3})})};
    EXPECT_EQ(batch_inputs(t).count(3), std::string(name) == "aten::eye" ? 0u : 1u);
  }
}

TEST(BatchInputs, BackwardResultsAndRowlessTensorsAreNone) {
  Tape t = tape();
  for (Entry& entry : t.entries) entry.of_backward = true;
  EXPECT_EQ(batch_inputs(t).at(5).size(), 1u);  // the given one
  t = tape();
  t.storages[2].size_bytes = 8;  // a tape from elsewhere may say anything
  EXPECT_EQ(batch_inputs(t).at(5).size(), 1u);
  t.entries[2].args[1].tensors[0].storage = 77;
  EXPECT_EQ(batch_inputs(t).at(5).size(), 1u);
}

// A second process begins before its loader gives the batch: [3] and [3] are stacked to [2,3], which is then read.
TEST(BatchInputs, BatchAssembledInTheStepIsOne) {
  Tape t;
  t.operators = {{"aten::stack", ""}, {"aten::mul", "Tensor"}};
  t.storages = {storage(Storage::kInput, 3), storage(Storage::kInput, 3), storage(Storage::kProduced, 6, "batch"),
                storage(Storage::kProduced, 6)};
  t.entries = {call(0, {tensor_value(0, {3}), tensor_value(1, {3})}, {tensor_value(2, {2, 3})}),
               call(1, {tensor_value(2, {2, 3}), tensor_value(2, {2, 3})}, {tensor_value(3, {2, 3})})};
  const auto found = batch_inputs(t);
  ASSERT_EQ(found.count(2), 1u);
  ASSERT_EQ(found.at(2).size(), 1u);
  EXPECT_EQ(found.at(2)[0].storage, 2u);
  EXPECT_EQ(found.at(2)[0].read_at, 1u);
  EXPECT_TRUE(found.at(2)[0].loaded);
  EXPECT_EQ(found.at(2)[0].row_bytes, 12u);
}

// x[order]: with one row of a permutation replaced, another sample is skipped. It takes as many rows as there are.
TEST(BatchInputs, PermutationOfRowsIsNone) {
  for (const bool loaded : {true, false}) {
    Tape t;
    t.operators = {{"aten::index", "Tensor"}};
    t.storages = {storage(Storage::kInput, 6, loaded ? "batch" : ""), storage(Storage::kInput, 2),
                  storage(Storage::kProduced, 6)};
    t.entries = {call(0, {tensor_value(0, {2, 3}), tensor_value(1, {2})}, {tensor_value(2, {2, 3})})};
    const auto found = batch_inputs(t).at(2);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].storage, 0u);
  }
}

// Of a table with other rows they say which ones make the batch.
TEST(BatchInputs, IndexThatTakesABatchHasItsRows) {
  Tape t;
  t.operators = {{"aten::index", "Tensor"}};
  t.storages = {storage(Storage::kInput, 15), storage(Storage::kInput, 2), storage(Storage::kProduced, 6)};
  t.entries = {call(0, {tensor_value(0, {5, 3}), tensor_value(1, {2})}, {tensor_value(2, {2, 3})})};
  EXPECT_EQ(batch_inputs(t).at(2).size(), 1u);
}

// A program that alarms in its first step makes its weights in that step: rows of those are no samples.
TEST(BatchInputs, WeightsThatTheStepItselfMakesAreNone) {
  Tape t = tape();
  t.storages[2].kind = "parameter";
  const auto found = batch_inputs(t);
  ASSERT_EQ(found.at(5).size(), 1u);
  EXPECT_EQ(found.at(5)[0].storage, 1u);
}

// x [4,5,3] as the program has it; the step reads it folded to [20,3], or with time in front.
TEST(BatchInputs, HaveTheRowsThatTheProgramSaw) {
  for (const bool folded : {true, false}) {
    Tape t;
    t.operators = {{"aten::mul", "Tensor"}};
    t.storages = {storage(Storage::kInput, 60, "batch"), storage(Storage::kProduced, 60)};
    Value read = tensor_value(0, {20, 3});
    if (!folded) read.tensors[0].sizes = {5, 4, 3}, read.tensors[0].strides = {3, 15, 1};
    t.entries = {call(0, {read}, {tensor_value(1, {60})})};
    t.entries[0].traced = 1;
    EXPECT_EQ(batch_inputs(t).count(4), 0u) << "the tape alone does not show it";
    record::Trace trace;
    trace.ops.resize(2);
    record::TensorUse use;
    use.storage = 0;
    use.end = 240;
    use.shape = {4, 5, 3};
    trace.ops[0].inputs = {use};  // a view of it
    use.shape = read.tensors[0].sizes;
    trace.ops[1].inputs = {use};
    const auto found = batch_inputs(t, &trace);
    ASSERT_EQ(found.size(), 1u);
    ASSERT_EQ(found.count(4), 1u) << folded;
    EXPECT_EQ(found.at(4)[0].row_bytes, 60u);
    EXPECT_TRUE(found.at(4)[0].loaded);
  }
}

}  // namespace
}  // namespace finitude::replay
