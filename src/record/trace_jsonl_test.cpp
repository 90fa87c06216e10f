#include "record/trace_jsonl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace finitude::record {
namespace {

TensorUse tensor(StorageId storage, std::uint64_t nan, std::uint64_t pos_inf, std::uint64_t neg_inf) {
  TensorUse use;
  use.storage = storage;
  use.begin = 16;
  use.end = 64;
  use.dense = nan == 0;
  use.dtype = nan == 0 ? sense::DType::kBFloat16 : sense::DType::kComplex64;
  use.shape = {2, 3, 4};
  use.health = {24, nan, pos_inf, neg_inf, 2, 1, 4.5, -4.5, 0.1, 20.25};
  use.first_bad = nan + pos_inf + neg_inf == 0 ? -1 : 7;
  if (nan != 0) use.bad_rows = {0, 1};
  use.arg = "self";
  use.requires_grad = true;
  use.written = nan != 0;
  return use;
}

Trace sample() {
  Trace t;
  t.storages = {{Origin::kParameter, "head.weight", kNone}, {}, {Origin::kBatch, "batch[0]", 1}, {}};
  t.stacks = {{{{"/home/a \"b\"/mod\xc3\xa9l.py", 87, "forward"}, {"/home/train.py", 3, ""}}, "Classifier.head", ""},
              {{}, "", "context"}};
  Op log;
  log.name = "aten::log";
  log.stack = 0;
  log.end_order = 1;
  log.inputs = {tensor(0, 0, 0, 0), tensor(kNone, 0, 0, 0)};
  log.outputs = {tensor(1, 0, 0, 3)};
  log.scalars = {{"alpha", "nan", NAN, true},
                 {"value", "-inf", -HUGE_VAL, false},
                 {"eps", "1e-08", 1e-8, false},
                 {"reduction", "mean", std::nullopt, false}};
  log.captured = true;
  log.random = true;
  Op node;
  node.name = "LogBackward0";
  node.is_node = true;
  node.phase = Phase::kBackward;
  node.forward = 0;
  node.end_order = 3;
  node.micro_batch = 2;
  Op mul;
  mul.name = "aten::mul";
  mul.phase = Phase::kBackward;
  mul.parent = mul.node = 1;
  mul.end_order = 2;
  mul.is_view = mul.allocates = mul.failed = true;
  mul.inputs = {tensor(2, 0, 0, 0)};
  mul.outputs = {tensor(3, 5, 1, 1)};
  t.ops = {log, node, mul};
  t.sinks = {{"loss", "loss", tensor(1, 1, 0, 0), 2, 1}, {"gradient", "head.weight", tensor(3, 1, 0, 0), kNone, 0}};
  t.truncated = true;
  return t;
}

TEST(TraceJsonl, RoundTripsEverything) {
  const Trace trace = sample();
  const std::string text = to_jsonl(trace);
  Trace back;
  std::string error;
  ASSERT_TRUE(from_jsonl(text, &back, &error)) << error;
  // The second writing can differ from the first only where reading lost or changed something that is
  // written;
  EXPECT_EQ(to_jsonl(back), text);
  // and the fields themselves, so that nothing is skipped of both.
  ASSERT_EQ(back.ops.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const Op &a = trace.ops[i], &b = back.ops[i];
    EXPECT_EQ(std::tie(a.name, a.is_node, a.is_view, a.allocates, a.random, a.failed, a.phase, a.parent, a.node,
                       a.forward, a.stack, a.end_order, a.micro_batch, a.captured),
              std::tie(b.name, b.is_node, b.is_view, b.allocates, b.random, b.failed, b.phase, b.parent, b.node,
                       b.forward, b.stack, b.end_order, b.micro_batch, b.captured));
    ASSERT_EQ(a.outputs.size(), b.outputs.size());
    for (std::size_t k = 0; k < a.outputs.size(); ++k) {
      const TensorUse &x = a.outputs[k], &y = b.outputs[k];
      EXPECT_EQ(std::tie(x.storage, x.begin, x.end, x.dense, x.dtype, x.shape, x.first_bad, x.bad_rows, x.arg,
                         x.requires_grad, x.written),
                std::tie(y.storage, y.begin, y.end, y.dense, y.dtype, y.shape, y.first_bad, y.bad_rows, y.arg,
                         y.requires_grad, y.written));
      const sense::Health &h = x.health, &g = y.health;
      EXPECT_EQ(std::tie(h.numel, h.nan, h.pos_inf, h.neg_inf, h.zero, h.subnormal, h.absmax, h.min, h.max, h.sum_sq),
                std::tie(g.numel, g.nan, g.pos_inf, g.neg_inf, g.zero, g.subnormal, g.absmax, g.min, g.max, g.sum_sq));
    }
  }
  ASSERT_EQ(back.ops[0].scalars.size(), 4u);
  EXPECT_TRUE(std::isnan(*back.ops[0].scalars[0].number));
  EXPECT_TRUE(back.ops[0].scalars[0].tensor_like);
  EXPECT_EQ(back.ops[0].scalars[1].number, -HUGE_VAL);
  EXPECT_EQ(back.ops[0].scalars[2].number, 1e-8);
  EXPECT_FALSE(back.ops[0].scalars[3].number.has_value());
  EXPECT_EQ(back.stacks[0].frames[0].file, trace.stacks[0].frames[0].file);
  EXPECT_EQ(back.stacks[1].statement_context, "context");
  EXPECT_EQ(back.storages[0].origin, Origin::kParameter);
  EXPECT_EQ(back.storages[2].stack, 1u);
  EXPECT_EQ(back.sinks[0].at_end_order, 2u);
  EXPECT_EQ(back.sinks[1].at_end_order, kNone);
  EXPECT_TRUE(back.truncated);
}

TEST(TraceJsonl, LinesAreReadableJson) {
  const std::string text = to_jsonl(sample());
  std::istringstream in(text);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["storages"], 4);
  const auto& op = lines[1];
  EXPECT_EQ(op["op"], "aten::log");
  EXPECT_EQ(op["phase"], "forward");
  EXPECT_EQ(op["line"], 87);
  EXPECT_EQ(op["module"], "Classifier.head");
  EXPECT_EQ(op["outputs"][0]["inf"], 3);
  EXPECT_EQ(op["growth"], 1.0);
  EXPECT_EQ(op["scalars"][0]["number"], "NaN");
  EXPECT_EQ(op["scalars"][1]["number"], "-Infinity");
}

TEST(TraceJsonl, TextThatIsNotUtf8IsReplaced) {
  Trace t = sample();
  t.ops[0].name = "mylib::\xff\xfe\n";
  Trace back;
  std::string error;
  ASSERT_TRUE(from_jsonl(to_jsonl(t), &back, &error)) << error;
  EXPECT_EQ(back.ops[0].name, "mylib::\xef\xbf\xbd\xef\xbf\xbd\n");
}

TEST(TraceJsonl, RejectsWhatIsMalformed) {
  const std::string good = to_jsonl(sample());
  Trace trace;
  std::string error;
  const auto rejects = [&](const std::string& text, const std::string& why) {
    error.clear();
    EXPECT_FALSE(from_jsonl(text, &trace, &error)) << why;
    EXPECT_NE(error.find(why), std::string::npos) << error << " / " << why;
    EXPECT_TRUE(trace.ops.empty() && trace.storages.empty());
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
  };
  rejects("", "not a JSON object");
  rejects("[]", "not a JSON object");
  rejects("{}", "not a finitude trace");
  rejects(std::string(100'000, '['), "not a JSON object");
  rejects(good.substr(0, good.size() - 20), "not a JSON object");
  rejects(good.substr(0, good.rfind('\n', good.size() - 2) + 1), "ops are missing");
  rejects(good + good.substr(good.find('\n') + 1), "more ops than announced");
  rejects(changed("\"finitude_trace\":1", "\"finitude_trace\":2"), "not a finitude trace");
  rejects(changed("\"ops\":3", "\"ops\":2000001"), "ops is too large");
  rejects(changed("\"storages\":4", "\"storages\":4000000"), "storages is too large");
  rejects(changed("\"storages\":4", "\"storages\":-4"), "not a valid integer");
  rejects(changed("\"storages\":4", "\"storages\":3"), "points beyond");
  rejects(changed("\"stack\":1", "\"stack\":2"), "points beyond");
  rejects(changed("\"parent\":1", "\"parent\":2"), "points beyond");
  rejects(changed("\"forward\":0", "\"forward\":3"), "points beyond");
  rejects(changed("\"id\":1", "\"id\":2"), "out of order");
  rejects(changed("\"phase\":\"backward\"", "\"phase\":\"sideways\""), "not a known word");
  rejects(changed("\"dtype\":\"bfloat16\"", "\"dtype\":\"int3\""), "dtype is not known");
  rejects(changed("\"begin\":16", "\"begin\":65"), "span is not valid");
  rejects(changed("\"nan\":5", "\"nan\":25"), "do not add up");
  rejects(changed("\"zero\":2", "\"zero\":25"), "do not add up");
  rejects(changed("\"shape\":[2,3,4]", "\"shape\":[2,-3,4]"), "something else than sizes");
  rejects(changed("\"bad_rows\":[0,1]", "\"bad_rows\":[0,-1]"), "something else than sizes");
  rejects(changed("\"number\":\"NaN\"", "\"number\":\"nan\""), "not a number");
  std::string many = "[0";
  for (int i = 0; i < 64; ++i) many += ",0";
  rejects(changed("\"shape\":[2,3,4]", "\"shape\":" + many + "]"), "shape is too long");
  rejects(changed("\"op\":\"aten::log\"", "\"op\":\"" + std::string(kMaxTraceText + 1, 'x') + "\""), "op is too long");
}

TEST(TraceJsonl, SurvivesTwentyThousandMutations) {
  const std::string good = to_jsonl(sample());
  const std::string_view tokens[] = {
      "{",       "}",       "[",    "]",   "\"",      ":",          ",",
      "\n",      "null",    "true", "-1",  "1e999",   "4294967295", "18446744073709551615",
      "\"NaN\"", "\\u0000", "\xff", "0.5", "{\"a\":", "9"};
  std::mt19937 rng(20'000);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (int edits = 1 + static_cast<int>(rng() % 3); edits > 0; --edits) {
      const std::size_t at = rng() % (text.size() + 1), length = rng() % 12;
      const std::string_view token = tokens[rng() % std::size(tokens)];
      switch (rng() % 4) {
        case 0:
          text.erase(std::min(at, text.size()), length);
          break;
        case 1:
          text.insert(at, token);
          break;
        case 2:
          text.replace(at, std::min(length, text.size() - at), token);
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(rng());
          break;
      }
    }
    Trace trace;
    std::string error;
    if (from_jsonl(text, &trace, &error)) {
      ++accepted;
      // What is accepted is consistent enough to be written and read again.
      Trace again;
      ASSERT_TRUE(from_jsonl(to_jsonl(trace), &again, &error)) << error;
    } else {
      ASSERT_FALSE(error.empty());
      ASSERT_TRUE(trace.ops.empty());
    }
  }
  EXPECT_GT(accepted, 100);  // mutations inside strings and numbers
}

}  // namespace
}  // namespace finitude::record
