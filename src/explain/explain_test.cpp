// The machinery around the rules: competition, confidence, origins, and traces that make no sense.
#include "explain/explain.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "explain/evidence.h"
#include "explain/origin.h"
#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using record::kNone;
using sense::DType;

// softmax -> log, with one zero; the shape of the design's example.
record::OpId log_of_softmax(TraceBuilder* b) {
  const auto logits = b->tensor({500, -500});
  const auto p = b->tensor({1, 0});
  b->op("aten::_softmax", {{"self", logits}}, {p});
  return b->op("aten::log", {{"self", p}}, {b->tensor({0, -kInf})});
}

TEST(Explain, ConfirmedByEveryExperimentIsProven) {
  TraceBuilder b;
  b.born(log_of_softmax(&b)).rows = {1};
  TableLab lab;
  lab.answers = {{"clamp", {0, -27}}, {"float64", {0, -kInf}}, {"rows", {0}}};
  b.lab = &lab;
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "log-of-zero");
  EXPECT_EQ(f.confidence, "proven");
  ASSERT_EQ(f.experiments.size(), 3u);
  EXPECT_EQ(f.experiments[0].outcome, "finite");
  EXPECT_EQ(f.experiments[1].outcome, "still -Inf");
  EXPECT_EQ(f.experiments[2].name, "row 1 removed");
  EXPECT_NE(f.text.find("softmax underflowed in float32"), std::string::npos) << f.text;
  EXPECT_NE(f.text.find("1 zero in self at row 1"), std::string::npos) << f.text;
  EXPECT_EQ(f.fix_file, "/user/model.py");
  EXPECT_EQ(f.fix_line, 2);
  EXPECT_NE(f.fix_text.find("F.log_softmax"), std::string::npos);
}

TEST(Explain, AContradictedExperimentCostsConfidenceAndScore) {
  TraceBuilder b;
  b.born(log_of_softmax(&b));
  const int before = b.explained().score;
  TableLab lab;
  lab.answers = {{"clamp", {0, -kInf}}, {"float64", {0, -kInf}}};
  b.lab = &lab;
  const Finding f = b.explained();
  EXPECT_EQ(f.confidence, "possible");
  EXPECT_EQ(f.score, before - kContradiction);
  EXPECT_FALSE(f.experiments[0].confirms);
}

TEST(Explain, WithoutALaboratoryTheStatisticsMakeItLikely) {
  TraceBuilder b;
  b.born(log_of_softmax(&b));
  EXPECT_EQ(b.explained().confidence, "likely");
}

TEST(Explain, OneExperimentIsNotAProof) {
  TraceBuilder b;
  b.born(log_of_softmax(&b));
  TableLab lab;
  lab.answers = {{"clamp", {0, -27}}};
  b.lab = &lab;
  EXPECT_EQ(b.explained().confidence, "likely");
}

TEST(Explain, UncapturedOpIsNotRun) {
  TraceBuilder b;
  const auto id = log_of_softmax(&b);
  b.born(id);
  b.trace.ops[id].captured = false;
  TableLab lab;
  lab.answers = {{"clamp", {0, -27}}, {"float64", {0, -kInf}}};
  b.lab = &lab;
  EXPECT_TRUE(b.explained().experiments.empty());
  EXPECT_EQ(lab.runs, 0);
}

TEST(Explain, SaysUnknownWhereNoRuleSpeaks) {
  TraceBuilder b;
  b.born(b.op("aten::sin", {{"self", b.tensor({1, 2})}}, {b.tensor({kNaN, 1})}));
  const Finding f = b.explained();
  EXPECT_EQ(f.cause_class, "unknown");
  EXPECT_EQ(f.confidence, "possible");
  EXPECT_NE(f.text.find("aten::sin"), std::string::npos);
}

TEST(Explain, NoBirthAtAllIsUnknown) {
  TraceBuilder b;
  EXPECT_EQ(b.explained().cause_class, "unknown");
}

TEST(Explain, RuleNamesAreDistinctAndExcludeTheSkeleton) {
  std::set<std::string> names;
  for (const auto& rule : rules()) EXPECT_TRUE(names.insert(rule->name()).second) << rule->name();
  EXPECT_EQ(names.count("skeleton"), 0u);
  EXPECT_EQ(names.size(), rules().size());
}

TEST(Explain, PlainNames) {
  EXPECT_EQ(plain_name("aten::_foreach_div_"), "div");
  EXPECT_EQ(plain_name("aten::_log_softmax"), "log_softmax");
  EXPECT_EQ(plain_name("aten::log10"), "log10");
  EXPECT_EQ(plain_name("SqrtBackward0"), "Sqrt");
  EXPECT_EQ(plain_name("Backward"), "Backward");
  EXPECT_EQ(plain_name(""), "");
}

TEST(Origin, ProducerIsTheLastOverlappingWriterNoView) {
  TraceBuilder b;
  auto whole = b.tensor({1, 2, 3, 4});
  const auto first = b.op("aten::mul", {}, {whole});
  auto part = whole;
  part.end = 8;
  const auto second = b.op("aten::add_", {}, {part});
  const auto view = b.op("aten::view", {{"self", whole}}, {whole});
  b.trace.ops[view].is_view = true;
  const auto reader = b.op("aten::log", {{"self", whole}}, {b.tensor({1})});
  auto tail = whole;
  tail.begin = 8;
  EXPECT_EQ(producer(b.trace, reader, whole), second);
  EXPECT_EQ(producer(b.trace, reader, tail), first);
  EXPECT_EQ(producer(b.trace, first, whole), kNone);
}

TEST(Origin, AnEnclosingOpIsNotItsChildsProducer) {
  TraceBuilder b;
  const auto x = b.tensor({1});
  const auto made = b.op("aten::mul", {}, {x});
  const auto outer = b.op("aten::softplus", {{"self", x}}, {x});
  const auto inner = b.op("aten::exp", {{"self", x}}, {b.tensor({1})});
  std::swap(b.trace.ops[outer].end_order, b.trace.ops[inner].end_order);
  EXPECT_EQ(producer(b.trace, inner, x), made);
}

TEST(Origin, InitialCopyOfResultIsNotItsProducer) {
  const auto made = [](const char* around, bool whole) {
    TraceBuilder b;
    const auto bias = b.tensor({0, 0}), x = b.tensor({1, 2});
    auto out = b.tensor({1, 2}), written = out;
    if (!whole) written.end = 4;
    const auto outer = b.op(around, {{"self", bias}, {"mat1", x}}, {out});
    const auto inner = b.op("aten::copy_", {{"src", bias}}, {written});
    b.trace.ops[inner].parent = outer;
    std::swap(b.trace.ops[outer].end_order, b.trace.ops[inner].end_order);
    const auto reader = b.op("aten::div", {{"self", out}}, {b.tensor({1, 1})});
    return producer(b.trace, reader, out) == outer;
  };
  EXPECT_TRUE(made("aten::addmm", true));
  EXPECT_FALSE(made("aten::clone", true));
  EXPECT_FALSE(made("aten::_pad_packed_sequence", false));
}

TEST(Origin, BadValueIsFollowedThroughCopiesToMaker) {
  TraceBuilder b;
  const auto made = b.tensor({0, -kInf}), cast = b.tensor({0, -kInf});
  const auto log = b.op("aten::log", {{"self", b.tensor({1, 0})}}, {made});
  b.op("aten::_to_copy", {{"self", made}}, {cast});
  const auto reader = b.op("aten::mul", {{"self", cast}}, {b.tensor({0, kNaN})});
  const BadOrigin origin = bad_origin(b.trace, reader, cast);
  EXPECT_EQ(origin.op, log);
  EXPECT_FALSE(origin.intended);
}

TEST(Origin, AnInfinityInTheCallIsIntended) {
  TraceBuilder b;
  const auto masked = b.tensor({1, -kInf});
  b.op("aten::masked_fill", {{"self", b.tensor({1, 2})}}, {masked}, {TraceBuilder::scalar("value", -kInf)});
  const auto reader = b.op("aten::mul", {{"self", masked}}, {b.tensor({0, kNaN})});
  EXPECT_TRUE(bad_origin(b.trace, reader, masked).intended);
}

TEST(Origin, PartialFiniteWriteIsNoBadValueSource) {
  TraceBuilder b;
  auto whole = b.tensor({kInf, 1});
  const auto bad = b.op("aten::exp", {{"self", b.tensor({1000, 0})}}, {whole});
  auto part = b.holding(whole, {5});
  part.begin = 4;
  b.op("aten::copy_", {{"self", part}, {"src", b.tensor({5})}}, {part});
  const auto reader = b.op("aten::mul", {{"self", whole}}, {b.tensor({kInf, 1})});
  EXPECT_EQ(bad_origin(b.trace, reader, whole).op, bad);
}

TEST(Origin, ExponentialsOverTheirSumAreASoftmax) {
  TraceBuilder b;
  const auto e = b.tensor({1, 0}), sum = b.tensor({1}), p = b.tensor({1, 0});
  b.op("aten::exp", {{"self", b.tensor({0, -200})}}, {e});
  b.op("aten::sum", {{"self", e}}, {sum});
  b.op("aten::div", {{"self", e}, {"other", sum}}, {p});
  const auto log = b.op("aten::log", {{"self", p}}, {b.tensor({0, -kInf})});
  EXPECT_EQ(edge_origin(b.trace, log, p, 0).kind, EdgeKind::kSaturated);
  EXPECT_EQ(edge_origin(b.trace, log, e, 0).kind, EdgeKind::kUnderflow);
}

TEST(Origin, SaturatedProbabilityIsFollowedToTheSigmoid) {
  TraceBuilder b;
  const auto h = b.tensor({1, 0.5}), rest = b.tensor({0, 0.5});
  const auto sigmoid = b.op("aten::sigmoid", {{"self", b.tensor({50, 0})}}, {h});
  b.op("aten::rsub", {{"self", h}}, {rest}, {TraceBuilder::scalar("other", 1)});
  const auto log = b.op("aten::log", {{"self", rest}}, {b.tensor({-kInf, -0.7})});
  const EdgeOrigin origin = edge_origin(b.trace, log, rest, 0);
  EXPECT_EQ(origin.op, sigmoid);
  EXPECT_EQ(origin.kind, EdgeKind::kSaturated);
}

TEST(Origin, ProductOfTinyNumbersUnderflowsInAMatrixProduct) {
  for (const double size : {1e-30, 1.0}) {
    TraceBuilder b;
    const auto product = b.tensor({0, 1e-3});
    const auto mm = b.op("aten::mm", {{"self", b.tensor({size, -size})}, {"mat2", b.tensor({size, size})}}, {product});
    const auto log = b.op("aten::log", {{"self", product}}, {b.tensor({-kInf, -6.9})});
    const EdgeOrigin origin = edge_origin(b.trace, log, product, 0);
    EXPECT_EQ(origin.op, mm);
    EXPECT_EQ(origin.kind, size < 1 ? EdgeKind::kUnderflow : EdgeKind::kCancelled);
  }
}

TEST(Explain, DivisionByExpNearZeroMinusOne) {
  TraceBuilder b;
  const auto e = b.tensor({1, 2.7}), rest = b.tensor({0, 1.7});
  b.op("aten::exp", {{"self", b.tensor({1e-9, 1})}}, {e});
  b.op("aten::sub", {{"self", e}, {"other", b.number(1)}}, {rest});
  b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", rest}}, {b.tensor({kInf, 0.6})}));
  const Finding found = b.explained();
  EXPECT_EQ(found.cause_class, "division-by-zero");
  EXPECT_EQ(found.fix_text, "torch.expm1(x) in the place of exp(x) - 1");
  EXPECT_TRUE(found.fix_is_no_edit);
}

TEST(Origin, ExpOfANumberNearZeroRoundsToOne) {
  for (const double x : {1e-9, 0.0}) {
    TraceBuilder b;
    const auto e = b.tensor({1, 2.7}), rest = b.tensor({0, 1.7});
    b.op("aten::exp", {{"self", b.tensor({x, 1})}}, {e});
    b.op("aten::sub", {{"self", e}, {"other", b.number(1)}}, {rest});
    b.born(b.op("aten::log", {{"self", rest}}, {b.tensor({-kInf, 0.5})}));
    const Finding found = b.explained();
    EXPECT_EQ(found.fix_text == "torch.expm1(x) in the place of exp(x) - 1", x != 0) << found.fix_text;
    EXPECT_EQ(found.text.find("exp of a number near 0 is 1 in float32") != std::string::npos, x != 0) << found.text;
  }
}

// mv makes its result and gives it to addmv_ with beta 0: zeros that lie there by chance are no origin.
TEST(Origin, UnwrittenMemoryIsNoOriginOfZeros) {
  for (const double chance : {0.0, 7.0}) {
    TraceBuilder b;
    const auto x = b.tensor({-900, -800}), kernel = b.tensor({0, 0}), vector = b.tensor({1, 1});
    const auto exp = b.op("aten::exp", {{"self", x}}, {kernel});
    const auto fresh = b.tensor({chance});
    auto sum = fresh;
    sum.health = b.tensor({0}).health;
    const auto mv = b.op("aten::mv", {{"self", kernel}, {"vec", vector}}, {sum});
    const auto empty = b.op("aten::empty", {}, {fresh});
    const auto addmv = b.op("aten::addmv_", {{"self", fresh}, {"mat", kernel}, {"vec", vector}}, {sum});
    b.trace.ops[empty].allocates = true;
    b.trace.ops[empty].parent = b.trace.ops[addmv].parent = mv;
    b.trace.ops[addmv].inputs[0].written = true;
    const auto div = b.op("aten::div", {{"self", b.tensor({1})}, {"other", sum}}, {b.tensor({kInf})});
    const EdgeOrigin origin = edge_origin(b.trace, div, sum, 0);
    EXPECT_EQ(origin.op, exp) << chance;
    EXPECT_EQ(origin.kind, EdgeKind::kUnderflow) << chance;
  }
}

// A capsule is outside data: no index in it may be trusted.
TEST(Explain, SenselessTracesAreSurvived) {
  std::mt19937 random(7);
  const auto pick = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  const char* names[] = {"aten::log",
                         "aten::div",
                         "aten::mul",
                         "aten::exp",
                         "aten::_softmax",
                         "aten::std",
                         "aten::sum",
                         "aten::copy_",
                         "aten::sub",
                         "aten::pow",
                         "aten::_ctc_loss",
                         "aten::nll_loss_forward",
                         "aten::linalg_eigh",
                         "c10d::allreduce_",
                         "SqrtBackward0",
                         "Custom",
                         "",
                         "aten::empty",
                         "aten::norm"};
  const char* kinds[] = {"forward", "backward", "optimizer", "data", "state", "memory", ""};
  const char* args[] = {"self", "other", "", "exponent"};
  for (int round = 0; round < 3000; ++round) {
    TraceBuilder b;
    const auto id = [&] { return pick(4) == 0 ? kNone : pick(9); };
    const auto use = [&] {
      record::TensorUse u;
      u.storage = id();
      u.begin = static_cast<int>(pick(8)) - 2;
      u.end = static_cast<int>(pick(8)) - 2;
      u.dtype = static_cast<DType>(pick(12));
      const double values[] = {0, 1, -1, kInf, -kInf, kNaN, 1e30, 1e-30, 300};
      std::vector<double> some(pick(4));
      for (auto& v : some) v = values[pick(9)];
      u.health = health_of(some);
      u.shape.assign(pick(3), static_cast<std::int64_t>(pick(4)) - 1);
      u.written = pick(4) == 0;
      u.arg = args[pick(4)];
      return u;
    };
    for (std::uint32_t i = pick(4); i-- > 0;)
      b.trace.storages.push_back({static_cast<record::Origin>(pick(7)), {}, id()});
    for (std::uint32_t i = pick(8); i-- > 0;) {
      record::Op op;
      op.name = names[pick(19)];
      op.is_node = pick(5) == 0;
      op.is_view = pick(5) == 0;
      op.allocates = pick(6) == 0;
      op.phase = static_cast<record::Phase>(pick(4));
      op.parent = id(), op.node = id(), op.forward = id(), op.stack = id();
      op.end_order = pick(9);
      for (std::uint32_t k = pick(4); k-- > 0;) op.inputs.push_back(use());
      for (std::uint32_t k = pick(3); k-- > 0;) op.outputs.push_back(use());
      if (pick(2))
        op.scalars.push_back(
            {"dim", "[99999999999", pick(2) ? std::optional<double>(1e300) : std::nullopt, pick(2) == 0});
      b.trace.ops.push_back(op);
    }
    locate::Birth birth;
    birth.op = id(), birth.node = id(), birth.forward = id(), birth.storage = id(), birth.absorbed_by = id(),
    birth.first_reader = id();
    birth.kind = kinds[pick(7)];
    birth.rows.assign(pick(9), -5);
    b.located.births = {birth};
    TableLab lab;
    if (pick(2)) b.lab = &lab;
    const Finding f = b.explained();
    EXPECT_FALSE(f.cause_class.empty());
    EXPECT_TRUE(f.confidence == "proven" || f.confidence == "likely" || f.confidence == "possible") << f.confidence;
  }
}

}  // namespace
}  // namespace finitude::explain
