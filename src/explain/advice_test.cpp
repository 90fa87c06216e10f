// What the report advises is the change that was verified, whichever of a rule's edits that is.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "explain/edits.h"
#include "explain/fix.h"
#include "explain/trace_builder.h"

namespace finitude::explain {
namespace {

using replay::Edit;
using replay::StepTrial;
using B = TraceBuilder;

// The edit of one number is verified, those before it are not.
class OneDoes : public replay::StepLab {
 public:
  explicit OneDoes(std::size_t number) : number_(number) {}
  std::string faithful() override { return {}; }
  double step_seconds() const override { return 0.001; }
  StepTrial run(const Edit& edit) override {
    StepTrial trial;
    if (edit.finite_only) return trial;
    trial.ran = true;
    if (asked_++ != number_) trial.bad = {"loss"};
    return trial;
  }
  StepTrial deterministic() override { return {}; }
  replay::GuiltyRows guilty_rows(const std::vector<std::int64_t>&, const replay::JudgedOp&, double) override {
    return {};
  }
  replay::FillTrial filled(double) override { return {}; }
  StepTrial after_share_of_update(double) override { return {}; }
  int again(int) override { return 3; }

 private:
  std::size_t number_, asked_ = 0;
};

Finding with_verified(Finding finding, std::size_t number) {
  OneDoes lab(number);
  try_on_step(finding, lab, {});
  EXPECT_TRUE(finding.fix_verified);
  return finding;
}

// The text up to what it names as not tried.
std::string advised(const Finding& finding) {
  const std::string& text = finding.fix_text;
  if (finding.fix_is_no_edit) return text.substr(std::min(text.find("tried: "), text.size()));
  return text.substr(0, text.find("not tried here"));
}

bool names(const std::string& text, const Edit& edit) {
  const auto any = [&](std::initializer_list<const char*> words) {
    return std::ranges::any_of(words, [&](const char* word) { return text.find(word) != std::string::npos; });
  };
  switch (edit.kind) {
    case Edit::Kind::kClamp:
      return any({"clamp", "finite number", "finfo"});
    case Edit::Kind::kReplace:
      return any({"in the place of", "replace", "torch.where", "divide by another number", "fill"});
    case Edit::Kind::kShift:
      return any({"subtract the maximum"});
    case Edit::Kind::kLeaveOut:
      return edit.switch_on.empty() ? any({"torch.where", "which is 0 there", "correction=0"})
                                    : any({edit.switch_on.c_str()});
    case Edit::Kind::kCompute:
      return any({edit.dtype == sense::DType::kFloat64 ? "float64" : "float32"});
  }
  return false;
}

const std::map<std::string, std::function<void(B&)>>& births() {
  static const std::map<std::string, std::function<void(B&)>> all = {
      {"log",
       [](B& b) {
         b.born(b.op("aten::log", {{"self", b.tensor({0, 1})}}, {b.tensor({-kInf, 0})}));
       }},
      {"log1p",
       [](B& b) {
         b.born(b.op("aten::log1p", {{"self", b.tensor({-1, 1})}}, {b.tensor({-kInf, 0.7})}));
       }},
      {"log of a negative",
       [](B& b) {
         b.born(b.op("aten::log", {{"self", b.tensor({-2})}}, {b.tensor({kNaN})}));
       }},
      {"log in backward",
       [](B& b) {
         const auto p = b.tensor({0, 1});
         const auto log = b.op("aten::log", {{"self", p}}, {b.tensor({-kInf, 0})});
         b.op("aten::where", {}, {b.tensor({0, 0})});
         b.begin_node("LogBackward0", log);
         b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", p}}, {b.tensor({kInf, 1})}));
       }},
      {"0 / 0",
       [](B& b) {
         b.born(b.op("aten::div", {{"self", b.tensor({0})}, {"other", b.tensor({0})}}, {b.tensor({kNaN})}));
       }},
      {"1 / 0",
       [](B& b) {
         b.born(b.op("aten::div", {{"self", b.tensor({1})}, {"other", b.tensor({0})}}, {b.tensor({kInf})}));
       }},
      {"1 / norm",
       [](B& b) {
         const auto norm = b.tensor({0, 2});
         b.op("aten::linalg_vector_norm", {{"self", b.tensor({0, 0, 2})}}, {norm});
         b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", norm}}, {b.tensor({kInf, 0.5})}));
       }},
      {"sqrt in backward",
       [](B& b) {
         const auto y = b.tensor({0, 1});
         const auto root = b.op("aten::sqrt", {{"self", b.tensor({0, 1})}}, {y});
         b.begin_node("SqrtBackward0", root);
         b.born(b.op("aten::div", {{"self", b.tensor({1, 1})}, {"other", y}}, {b.tensor({kInf, 1})}));
       }},
      {"sqrt of a negative",
       [](B& b) {
         b.born(b.op("aten::sqrt", {{"self", b.tensor({-2})}}, {b.tensor({kNaN})}));
       }},
      {"exp",
       [](B& b) {
         b.born(b.op("aten::exp", {{"self", b.tensor({120})}}, {b.tensor({kInf})}));
       }},
      {"product",
       [](B& b) {
         b.born(b.op("aten::mul", {{"self", b.tensor({1e30})}, {"other", b.tensor({1e30})}}, {b.tensor({kInf})}));
       }},
      {"masked softmax",
       [](B& b) {
         b.born(b.op("aten::_softmax", {{"self", b.tensor({-kInf, -kInf})}}, {b.tensor({kNaN, kNaN})},
                     {B::scalar("dim", -1)}));
       }},
      {"largest of nothing",
       [](B& b) {
         const auto masked = b.tensor({-kInf, -kInf});
         b.op("aten::masked_fill", {{"self", b.tensor({1, 1})}, {"value", b.number(-kInf)}}, {masked});
         b.born(b.op("aten::amax", {{"self", masked}}, {b.tensor({-kInf})}));
       }},
      {"0 x Inf",
       [](B& b) {
         b.born(b.op("aten::mul", {{"self", b.tensor({0})}, {"other", b.tensor({-kInf})}}, {b.tensor({kNaN})}));
       }},
      {"Inf - Inf",
       [](B& b) {
         b.born(b.op("aten::sub", {{"self", b.tensor({kInf})}, {"other", b.tensor({kInf})}}, {b.tensor({kNaN})}));
       }},
      {"std of one",
       [](B& b) {
         b.born(b.op("aten::std", {{"self", b.tensor({3})}}, {b.tensor({kNaN})}, {B::scalar("correction", 1)}));
       }},
      {"mean of nothing",
       [](B& b) {
         b.born(b.op("aten::mean", {{"self", b.tensor({})}}, {b.tensor({kNaN})}));
       }},
      {"ctc",
       [](B& b) {
         b.born(b.op("aten::_ctc_loss", {{"log_probs", b.tensor({-1, -1})}}, {b.tensor({kInf})}));
       }},
  };
  return all;
}

TEST(Advice, NamesTheEditThatWasVerified) {
  std::map<Edit::Kind, int> kinds;
  for (const auto& [name, build] : births()) {
    B b;
    build(b);
    const Finding found = b.explained();
    ASSERT_FALSE(found.edits.empty()) << name << ": " << found.text;
    for (std::size_t i = 0; i < found.edits.size(); ++i) {
      const Finding tried = with_verified(found, i);
      ++kinds[tried.fix_edit->kind];
      EXPECT_TRUE(names(advised(tried), found.edits[i]))
          << name << ": " << tried.fix_text << " [" << found.edits[i].text;
    }
  }
  EXPECT_EQ(kinds.size(), 4U);  // each kind of edit was the verified one
}

// A step that an exception ended before backward has no gradients.
TEST(Advice, CallsFiniteWhatTheStepHas) {
  class LossOnly : public OneDoes {
   public:
    LossOnly() : OneDoes(0) {}
    std::string judged() const override { return "loss"; }
    StepTrial deterministic() override {
      StepTrial trial;
      trial.ran = true;
      return trial;
    }
  };
  B b;
  births().at("log")(b);
  Finding found = b.explained();
  LossOnly lab;
  try_on_step(found, lab, {});
  EXPECT_TRUE(found.fix_verified);
  EXPECT_TRUE(found.fix_outcome.starts_with("loss finite, ")) << found.fix_outcome;
  EXPECT_EQ(found.experiments.back().outcome, "loss finite");
  for (const Experiment& e : found.experiments) EXPECT_EQ(e.outcome.find("gradients finite"), std::string::npos);
}

// The report named a clamp where a clamp had been tried and had not done.
TEST(Advice, DropsWhatWasTriedAndDidNotDo) {
  B b;
  births().at("log in backward")(b);
  const Finding found = b.explained();
  ASSERT_EQ(found.edits.back().kind, Edit::Kind::kLeaveOut);
  const Finding tried = with_verified(found, found.edits.size() - 1);
  EXPECT_EQ(tried.fix_text.find("clamp"), std::string::npos) << tried.fix_text;
  EXPECT_NE(with_verified(found, 0).fix_text.find("clamp"), std::string::npos);
}

// The number is the one that was tried.
TEST(Advice, FloorOfAClampIsTheVerifiedOne) {
  B b;
  births().at("log")(b);
  const Finding found = b.explained();
  EXPECT_NE(with_verified(found, 0).fix_text.find("clamp(min=1e-12)"), std::string::npos);
  const std::string smaller = with_verified(found, 1).fix_text;
  EXPECT_EQ(smaller.find("1e-12"), std::string::npos) << smaller;
  EXPECT_NE(smaller.find("clamp(min=1.2e-38)"), std::string::npos) << smaller;
  B half;
  half.born(half.op("aten::log", {{"self", half.tensor({0, 1}, sense::DType::kFloat16)}},
                    {half.tensor({-kInf, 0}, sense::DType::kFloat16)}));
  const Finding of_half = half.explained();
  ASSERT_EQ(of_half.cause_class, "log-of-zero");
  EXPECT_NE(of_half.fix_text.find(of_half.edits[0].code.substr(1)), std::string::npos)
      << of_half.fix_text << " " << of_half.edits[0].code;
}

// A change at one line does not do where it was tried at several, nor at all calls where at one.
TEST(Advice, SaysAtWhichCallsItWasTried) {
  B b;
  const auto first = b.op("aten::exp", {{"self", b.tensor({120})}}, {b.tensor({kInf})});
  const auto second = b.op("aten::exp", {{"self", b.tensor({130})}}, {b.tensor({kInf})});
  locate::Birth other = b.born(second);
  b.born(first);
  b.located.births.push_back(other);
  const Finding found = b.explained();
  const auto wide = std::ranges::find_if(found.edits, [](const Edit& edit) { return edit.ops.size() == 2; });
  ASSERT_NE(wide, found.edits.end());
  const auto at = static_cast<std::size_t>(wide - found.edits.begin());
  EXPECT_NE(with_verified(found, at).fix_text.find("(model.py:1, model.py:2)"), std::string::npos)
      << with_verified(found, at).fix_text;
  EXPECT_EQ(with_verified(found, 0).fix_text.find("model.py:2"), std::string::npos);
}

// hypot at the origin has no derivative; that of acosh at 1 is infinite, and a clamp into [-1, 1] leaves it there.
TEST(DomainEdge, SaysWhatIsWrongWithTheDerivative) {
  const auto explained = [](const char* op, const char* node, const std::vector<double>& x) {
    B b;
    const auto call = b.op(op, {{"self", b.tensor(x)}}, {b.tensor({0, 1})});
    b.begin_node(node, call);
    b.born(b.op("aten::div", {{"self", b.tensor({0, 1})}, {"other", b.tensor({0, 1})}}, {b.tensor({kNaN, 1})}));
    return b.explained();
  };
  const Finding hypot = explained("aten::hypot", "HypotBackward0", {0, 1});
  EXPECT_NE(hypot.text.find("derivative of hypot does not exist at zero"), std::string::npos) << hypot.text;
  const Finding root = explained("aten::sqrt", "SqrtBackward0", {0, 1});
  EXPECT_NE(root.text.find("at the edge of its domain is infinite: its argument has 1 zero"), std::string::npos)
      << root.text;
  const Finding acos = explained("aten::acos", "AcosBackward0", {0, 1});
  EXPECT_NE(acos.text.find("its argument has the value 1"), std::string::npos) << acos.text;
  const Finding both = explained("aten::acos", "AcosBackward0", {-1, 1});
  EXPECT_NE(both.text.find("the values -1 and 1"), std::string::npos) << both.text;
  const Finding acosh = explained("aten::acosh", "AcoshBackward0", {1, 2});
  EXPECT_NE(acosh.fix_text.find("above 1"), std::string::npos) << acosh.fix_text;
  ASSERT_TRUE(acosh.edits.front().min);
  EXPECT_GT(*acosh.edits.front().min, 1);
  EXPECT_EQ(acosh.edits.front().code, ".clamp(min=1.000001)");
  EXPECT_EQ(acosh.edits.front().text, "self clamped at 1.000001");
}

// -1 as an int32 is a NaN as a float32: no other program wrote that memory.
TEST(BadData, IntegersWrittenIntoMemoryOfFloats) {
  for (const auto dtype : {sense::DType::kOther, sense::DType::kFloat32}) {
    B b;
    const auto memory = b.tensor({2, 3, 4, 5});
    auto bits = memory;
    bits.dtype = dtype;
    bits.end = memory.end / 2;
    b.op("aten::fill_", {{"self", bits}}, {bits}, {B::scalar("value", -1)});
    const auto reader = b.op("aten::mul", {{"self", B::holding(memory, {kNaN, kNaN, 4, 5})}}, {b.tensor({kNaN, 5})});
    auto& birth = b.born(reader);
    birth.kind = "memory", birth.op = birth.node = birth.forward = record::kNone, birth.storage = memory.storage;
    birth.first_reader = reader;
    const Finding found = b.explained();
    const bool integers = dtype == sense::DType::kOther;
    EXPECT_EQ(found.cause_class, integers ? "bad-data" : "memory-corruption") << found.text;
    EXPECT_EQ(found.text.find("writes integers into memory that aten::mul") != std::string::npos, integers);
    EXPECT_EQ(found.fix_line, integers ? 1 : 2);
  }
}

// torch.xlogy(p, p) has the gradient NaN at p = 0.
TEST(Advice, NamesNothingThatFailsItself) {
  B lost;
  const auto sum = lost.tensor({0, 1}, sense::DType::kFloat16);
  lost.op("aten::add", {{"self", lost.tensor({0, 1}, sense::DType::kFloat16)}, {"other", lost.number(1e-12)}}, {sum});
  lost.born(lost.op("aten::div", {{"self", lost.tensor({1, 1}, sense::DType::kFloat16)}, {"other", sum}},
                    {lost.tensor({kInf, 1}, sense::DType::kFloat16)}));
  const Finding found = lost.explained();
  ASSERT_EQ(found.cause_class, "half-precision-underflow") << found.text;
  EXPECT_NE(found.fix_text.find("at least 6.4e-05 in float16"), std::string::npos) << found.fix_text;
  B log;
  births().at("log")(log);
  EXPECT_EQ(log.explained().fix_text.find("xlogy"), std::string::npos);
}

TEST(Fix, MissingArgumentIsSkipped) {
  TraceBuilder b;
  b.born(b.op("aten::neg", {{"self", b.tensor({1})}}, {b.tensor({kInf})}));
  const Evidence evidence = b.evidence();
  const Scene scene(evidence);
  Finding finding;
  Edits(scene).replaced("other", 0, 1).at_least("self", 0.5).into(finding);
  ASSERT_EQ(finding.edits.size(), 1u);
  EXPECT_EQ(finding.edits[0].arg, "self");
}

}  // namespace
}  // namespace finitude::explain
