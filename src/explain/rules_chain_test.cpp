// Rules that go back along the chain that led to an operand: what the zero, the infinity or the bits come of.
#include <gtest/gtest.h>

#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::Origin;
using record::Phase;
using sense::DType;
using B = TraceBuilder;

bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

// Eigenvalues of X^T X, of a [3, n] by a [n, 3] matrix; then their logarithm.
Finding log_of_eigenvalues(double smallest, std::int64_t n) {
  B b;
  const auto product = B::shaped(b.tensor({1, 0, 0, 0, 1, 0, 0, 0, 0}), {3, 3}),
             matrix = B::shaped(b.tensor({1, 0, 0, 0, 1, 0, 0, 0, 0}), {3, 3});
  const auto thin = B::shaped(b.tensor(std::vector<double>(static_cast<std::size_t>(3 * n), 1)), {3, n});
  const auto values = b.tensor({smallest, 0.5, 1});
  b.op("aten::mm", {{"self", thin}, {"mat2", B::shaped(thin, {n, 3})}}, {product});
  b.op("aten::div", {{"self", product}}, {matrix}, {B::scalar("other", 4)});
  b.op("aten::_linalg_eigh", {{"A", matrix}}, {values, B::shaped(b.tensor(std::vector<double>(9, 0.3)), {3, 3})});
  b.born(b.op("aten::log", {{"self", values}}, {b.tensor({smallest < 0 ? kNaN : -kInf, -0.7, 0})}));
  return b.explained();
}

TEST(DegenerateLinalg, LogOfEigenvaluesThatAreNearlyZero) {
  for (const double smallest : {-1e-8, 0.0}) {
    const Finding f = log_of_eigenvalues(smallest, 2);
    EXPECT_EQ(f.cause_class, "degenerate-linalg") << smallest;
    EXPECT_TRUE(says(f.text, "eigenvalues of a matrix that is singular")) << f.text;
    EXPECT_TRUE(says(f.text, "rank is at most 2")) << f.text;
  }
  EXPECT_FALSE(says(log_of_eigenvalues(0, 5).text, "rank"));              // wide enough
  EXPECT_EQ(log_of_eigenvalues(-0.1, 5).cause_class, "log-of-negative");  // indefinite, not singular
}

TEST(DegenerateLinalg, LogOfDeterminantOrScaledValues) {
  const auto log_of_det = [](double det) {
    B b;
    const auto matrix = B::shaped(b.tensor({1, 2, 2, 4}), {2, 2});
    auto value = b.tensor({det});
    value.shape = {};
    b.op("aten::_linalg_det", {{"A", matrix}}, {value, B::shaped(b.tensor({2, 4, 0.5, 0}), {2, 2})});
    b.born(b.op("aten::log", {{"self", value}}, {b.tensor({kNaN})}));
    return b.explained();
  };
  EXPECT_EQ(log_of_det(-1e-6).cause_class, "degenerate-linalg");
  EXPECT_TRUE(says(log_of_det(-1e-6).text, "log of the determinant of a matrix that is singular"))
      << log_of_det(-1e-6).text;
  EXPECT_EQ(log_of_det(-1).cause_class, "log-of-negative");
  B b;
  const auto values = b.tensor({-1e-8, 1}), share = b.tensor({-5e-9, 0.5});
  b.op("aten::_linalg_eigh", {{"A", B::shaped(b.tensor({1, 1, 1, 1}), {2, 2})}}, {values});
  b.op("aten::div", {{"self", values}, {"other", b.tensor({2})}}, {share});
  b.born(b.op("aten::log", {{"self", share}}, {b.tensor({kNaN, -0.7})}));
  EXPECT_EQ(b.explained().cause_class, "degenerate-linalg");
}

TEST(DegenerateLinalg, RootOfASingularValueInBackward) {
  B b;
  const auto values = b.tensor({2, 0});
  b.op("aten::_linalg_svd", {{"A", B::shaped(b.tensor({2, 0, 0, 0}), {2, 2})}}, {values});
  const auto root = b.tensor({1.4, 0}), twice = b.tensor({2.8, 0});
  const auto sqrt = b.op("aten::sqrt", {{"self", values}}, {root});
  b.begin_node("SqrtBackward0", sqrt);
  b.op("aten::mul", {{"self", root}}, {twice}, {B::scalar("other", 2)});
  b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", twice}}, {b.tensor({0.3, kInf})}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "degenerate-linalg");
  EXPECT_TRUE(says(f.text, "singular values")) << f.text;
}

// x / sum(m), where the sum is filled with zero before its kernel adds up.
record::TensorUse summed(B& b, const record::TensorUse& of, const std::vector<double>& sum) {
  const auto out = b.tensor(sum);
  const auto outer = b.op("aten::sum", {{"self", of}}, {out}),
             fill = b.op("aten::fill_", {{"self", out}}, {out}, {B::scalar("value", 0)});
  b.trace.ops[fill].parent = outer;
  std::swap(b.trace.ops[fill].end_order, b.trace.ops[outer].end_order);
  return out;
}

Finding divided(B& b, const record::TensorUse& numerator, const record::TensorUse& denominator) {
  b.born(b.op("aten::div", {{"self", numerator}, {"other", denominator}}, {b.tensor({kNaN})}));
  return b.explained();
}

TEST(DivisionByZero, AMaskThatSelectsNothing) {
  B b;
  const Finding f = divided(b, b.tensor({0}), summed(b, b.tensor({0, 0, 0}), {0}));
  EXPECT_EQ(f.cause_class, "division-by-zero");
  EXPECT_TRUE(says(f.text, "over nothing")) << f.text;
  EXPECT_TRUE(says(f.fix_text, "nothing is selected")) << f.fix_text;
  B rows;  // two rows of three, of which one is masked
  const auto mask = B::shaped(rows.tensor({1, 0, 1, 0, 0, 0}), {2, 3});
  rows.born(rows.op("aten::div", {{"self", rows.tensor({4, 0})}, {"other", summed(rows, mask, {2, 0})}},
                    {rows.tensor({2, kNaN})}));
  EXPECT_TRUE(says(rows.explained().text, "the mask selects no element")) << rows.explained().text;
  B product;  // exp(x) * mask
  const auto kept = product.tensor({0, 0});
  product.op("aten::mul", {{"self", product.tensor({1, 2})}, {"other", product.tensor({0, 1})}}, {kept});
  EXPECT_TRUE(says(divided(product, product.tensor({0}), summed(product, kept, {0})).text, "what a mask leaves"));
  B twin;  // they cancel
  EXPECT_FALSE(says(divided(twin, twin.tensor({0}), summed(twin, twin.tensor({1, -1, 0}), {0})).text, "nothing"));
}

TEST(DivisionByZero, AGroupWithNoMember) {
  B b;
  const auto degree = b.tensor({2, 0});
  const auto add = b.op("aten::index_add", {{"self", b.tensor({0, 0})}, {"source", b.tensor({1, 1})}}, {degree});
  const auto copy = b.op("aten::copy_", {{"self", degree}, {"src", b.tensor({0, 0})}}, {degree});
  b.trace.ops[copy].parent = add;
  std::swap(b.trace.ops[copy].end_order, b.trace.ops[add].end_order);
  const Finding f = divided(b, b.tensor({3, 0}), degree);
  EXPECT_TRUE(says(f.text, "some group has no member")) << f.text;
  B twin;  // what is added cancels
  const auto sum = twin.tensor({2, 0});
  twin.op("aten::index_add", {{"self", twin.tensor({0, 0})}, {"source", twin.tensor({1, -1})}}, {sum});
  EXPECT_FALSE(says(divided(twin, twin.tensor({3, 0}), sum).text, "group"));
}

TEST(DivisionByZero, AWeightByItsOwnNorm) {
  const auto normalised = [](B& b, const record::TensorUse& weight, const record::TensorUse& measured) {
    const auto norm = b.tensor({0});
    b.op("aten::linalg_vector_norm", {{"self", measured}}, {norm});
    return divided(b, weight, norm);
  };
  B b;
  const auto weight = b.tensor({0, 0}, DType::kFloat32, Origin::kParameter, "head.weight");
  const Finding f = normalised(b, weight, weight);
  EXPECT_TRUE(says(f.text, "head.weight is divided by its own norm, and it is all zero")) << f.text;
  EXPECT_FALSE(says(f.fix_text, "F.normalize")) << f.fix_text;
  B twin;  // by the norm of something else
  const auto other = twin.tensor({0, 0}, DType::kFloat32, Origin::kParameter, "head.weight");
  EXPECT_FALSE(says(normalised(twin, other, twin.tensor({0, 0})).text, "its own norm"));
}

TEST(DivisionByZero, AWeightByItsLargestSingularValue) {
  B b;
  const auto weight = b.tensor({0, 0}, DType::kFloat32, Origin::kParameter, "head.weight"), sigma = b.tensor({0}),
             product = b.tensor({0, 0});
  b.op("aten::mv", {{"self", weight}, {"vec", b.tensor({1, 1})}}, {product});
  const auto dot = b.op("aten::dot", {{"self", b.tensor({1, 1})}, {"tensor", product}}, {sigma});
  for (const char* inside : {"aten::empty", "aten::fill_"}) {
    const auto id = b.op(inside, {}, {sigma});
    b.trace.ops[id].parent = dot;
    b.trace.ops[id].allocates = inside == std::string("aten::empty");
    std::swap(b.trace.ops[id].end_order, b.trace.ops[dot].end_order);
  }
  EXPECT_TRUE(says(divided(b, weight, sigma).text, "head.weight is divided by its own norm"));
}

TEST(FullyMaskedSoftmax, WrittenByHand) {
  const auto less_largest = [](B& b, const char* next) {
    const auto x = B::shaped(b.tensor({1, 2, -kInf, -kInf}), {2, 2}), top = B::shaped(b.tensor({2, -kInf}), {2, 1});
    b.op("aten::max", {{"self", x}}, {top}, {B::scalar("dim", 1)});
    const auto less = b.tensor({-1, 0, kNaN, kNaN});
    const auto sub = b.op("aten::sub", {{"self", x}, {"other", top}}, {less});
    const auto after = b.op(next, {{"self", less}}, {b.tensor({0.4, 1, kNaN, kNaN})});
    auto& birth = b.born(sub);
    birth.rows = {1};
    birth.path = {after};
    return b.explained();
  };
  B b;
  const Finding f = less_largest(b, "aten::exp");
  EXPECT_EQ(f.cause_class, "fully-masked-softmax");
  EXPECT_TRUE(says(f.text, "1 row of 2 elements")) << f.text;
  B twin;  // a gap to the best: no softmax
  EXPECT_EQ(less_largest(twin, "aten::pow").cause_class, "infinity-minus-infinity");
}

TEST(ImpossibleEvent, ForbiddenPathScoreMinusTheTotal) {
  const auto loss = [](B& b, Origin origin, bool total) {
    const auto forbid = b.tensor({0, -kInf}, DType::kFloat32, origin, "crf.forbid"), scores = b.tensor({1, -kInf}),
               gold = b.tensor({-kInf});
    b.op("aten::add", {{"self", b.tensor({1, 1})}, {"other", forbid}}, {scores});
    b.op("aten::index", {{"self", scores}}, {gold});
    const auto all = b.tensor({3}), each = b.tensor({kInf});
    if (total) b.op("aten::logsumexp", {{"self", b.tensor({1, 2})}}, {all});
    b.op("aten::sub", {{"self", all}, {"other", gold}}, {each});
    b.born(b.op("aten::sum", {{"self", each}}, {b.tensor({kInf})}));
    return b.explained();
  };
  B b;
  const Finding f = loss(b, Origin::kBuffer, true);
  EXPECT_EQ(f.cause_class, "log-of-zero");
  EXPECT_TRUE(says(f.text, "forbids")) << f.text;
  EXPECT_TRUE(says(f.text, "crf.forbid")) << f.text;
  B alone, computed;
  EXPECT_NE(loss(alone, Origin::kBuffer, false).cause_class, "log-of-zero");
  EXPECT_NE(loss(computed, Origin::kUnknown, true).cause_class, "log-of-zero");
}

// What is tried is what the batch holds.
TEST(BadData, TheValueThatIsThereIsReplaced) {
  const auto tried = [](std::vector<double> values) {
    B b;
    const auto batch = b.tensor(values, DType::kFloat32, record::Origin::kBatch, "batch[x]");
    b.born(b.op("aten::mul", {{"self", batch}, {"other", b.tensor({2})}}, {b.tensor({kNaN, kNaN, 2})}));
    const Finding f = b.explained();
    EXPECT_EQ(f.cause_class, "bad-data") << f.text;
    return f.edits.empty() ? std::string() : f.edits.front().text;
  };
  EXPECT_EQ(tried({kNaN, kNaN, 1}), "NaN in self replaced by 0");
  EXPECT_EQ(tried({kInf, 1, 1}), "+Inf in self replaced by 0");
  EXPECT_EQ(tried({-kInf, 1, 1}), "-Inf in self replaced by 0");
  EXPECT_EQ(tried({-kInf, kInf, 1}), "infinities in self replaced by 0");
  EXPECT_EQ(tried({-kInf, kNaN, 1}), "NaN and infinities in self replaced by 0");
}

TEST(BadData, BitsOfIntegersReadAsFloats) {
  B b;
  b.phase = Phase::kForward;
  auto words = b.tensor({}, DType::kOther), floats = words;
  floats.dtype = DType::kFloat32;
  const auto view = b.op("aten::view", {{"self", words}}, {floats});
  b.trace.ops[view].is_view = true;
  const auto reader = b.op("aten::addmm", {{"mat1", B::holding(floats, {kNaN, 1})}}, {b.tensor({kNaN})});
  b.born(view).first_reader = reader;
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "bad-data");
  EXPECT_TRUE(says(f.text, "takes the bits of integers for float32")) << f.text;
  B twin;  // a view that takes nothing for anything else
  const auto x = twin.tensor({kNaN, 1});
  const auto plain = twin.op("aten::view", {{"self", x}}, {x});
  twin.trace.ops[plain].is_view = true;
  twin.born(plain).first_reader = twin.op("aten::mul", {{"self", x}}, {twin.tensor({kNaN, 1})});
  EXPECT_FALSE(says(twin.explained().text, "bits"));
}

TEST(LogOfZero, HarmlessButWhereASoftmaxHasNothingLeft) {
  B b;
  const auto log = b.tensor({0, -kInf, -kInf, -kInf}), soft = B::shaped(b.tensor({1, 0, kNaN, kNaN}), {2, 2});
  const auto id = b.op("aten::log", {{"self", b.tensor({1, 0, 0, 0})}}, {log});
  auto out = soft;
  out.bad_rows = {1};
  const auto softmax = b.op("aten::_softmax", {{"self", log}}, {out});
  b.born(id).path = {softmax};
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "log-of-zero");
  EXPECT_TRUE(says(f.text, "_softmax at model.py:2 makes NaN of them at row 1")) << f.text;
}

TEST(Collective, MemoryThatIsFilledIsNotWhatARankGave) {
  for (const double before : {3e38, kNaN}) {
    B b;
    b.born(b.op("c10d::reduce_scatter_tensor_coalesced_",
                {{"outputs", b.tensor({before})}, {"inputs", b.tensor({1, 2})}}, {b.tensor({kInf})}));
    EXPECT_EQ(b.explained().cause_class, "other-rank") << before;
  }
}

}  // namespace
}  // namespace finitude::explain
