// Dumps compared by the names of their records.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compare/msprobe_records.h"
#include "compare/record_growth.h"
#include "compare/record_judge.h"

namespace finitude::compare {
namespace {

using Kind = RecordRoot::Kind;
using nlohmann::json;

json statistics_of(const std::string& arg, double value, const std::string& bits) {
  return {{"arg", arg},      {"shape", {2, 2}}, {"dtype", "float32"}, {"min", -value}, {"max", value},
          {"absmax", value}, {"nan", 0},        {"inf", 0},           {"numel", 4},    {"sum_sq", 4 * value * value},
          {"checksum", bits}};
}

// A module that reads one value and returns one.
json module_of(const std::string& name, const std::string& op, double in, double out, double weight = 0) {
  const auto bits = [](double value) { return "bits" + std::to_string(value); };
  json made = {{"op", op},
               {"module", name},
               {"phase", "forward"},
               {"call", 0},
               {"inputs", {statistics_of("input", in, bits(in))}},
               {"outputs", {statistics_of("output", out, bits(out))}},
               {"file", "net.py"},
               {"line", 7}};
  if (weight != 0) made["parameters"] = {statistics_of("weight", weight, bits(weight))};
  return made;
}

struct Outcome {
  Dump a, b;
  std::vector<RecordRow> rows;
  std::vector<RecordPair> pairs;
  RecordJudgement judgement;

  const Record& first() const { return a.records[rows[judgement.first.row].a]; }
};

Outcome compared(const json& a, const json& b, const std::string& map = "", const LearnedNoise& noise = {}) {
  Outcome out;
  out.a.records = records_of_trace({{"ops", a}});
  out.b.records = records_of_trace({{"ops", b}});
  out.rows = match_records(out.a.records, out.b.records, *parse_name_map(map));
  out.pairs = measure_records(out.a, out.b, out.rows, noise);
  out.judgement = judge_records(out.a, out.b, out.rows, out.pairs);
  return out;
}

json net(double head = 4) {
  return {module_of("Net.a", "Linear", 1, 2, 9), module_of("Net.n", "LayerNorm", 2, 3),
          module_of("Net.head", "Linear", 3, head), module_of("Net", "Net", 1, head)};
}

TEST(Records, SameDumpsHaveNoDivergence) {
  const Outcome out = compared(net(), net());
  EXPECT_FALSE(out.judgement.has_root);
  EXPECT_EQ(out.judgement.same, 4U);
}

TEST(Records, InnermostModuleWithSameInputsIsFirst) {
  const Outcome out = compared(net(), net(5));
  ASSERT_TRUE(out.judgement.has_root);
  EXPECT_EQ(out.judgement.first.kind, Kind::kModule);
  EXPECT_EQ(out.first().module, "Net.head");
  EXPECT_TRUE(out.judgement.further.empty());
}

TEST(Records, ParameterExplainsItsModule) {
  json b = net(5);
  b[0] = module_of("Net.a", "Linear", 1, 2.5, 10);
  const Outcome out = compared(net(), b);
  EXPECT_EQ(out.judgement.first.kind, Kind::kParameter);
  EXPECT_EQ(out.judgement.first.explainers, std::vector<std::string>{"weight"});
}

TEST(Records, SettingsExplainTheirModule) {
  json a = net(), b = net(4.5);
  a[1]["settings"] = "eps=1e-05";
  b[1] = module_of("Net.n", "LayerNorm", 2, 3.5);
  b[1]["settings"] = "eps=0.1";
  const Outcome out = compared(a, b);
  EXPECT_EQ(out.judgement.first.kind, Kind::kSettings);
  EXPECT_EQ(out.first().module, "Net.n");
}

TEST(Records, AnotherClassIsASettingAlsoWhereTheProgramHasIt) {
  json b = net(4.5);
  b[1] = module_of("Net.n", "RMS", 2, 3.5);
  const Outcome out = compared(net(), b);
  EXPECT_EQ(out.judgement.first.kind, Kind::kSettings);
  EXPECT_EQ(out.judgement.first.explainers, (std::vector<std::string>{"LayerNorm()", "RMS()"}));
  b[1] = module_of("Net.n", "FSDPLayerNorm", 2, 3.5);
  EXPECT_EQ(compared(net(), b).judgement.first.kind, Kind::kModule);
}

TEST(Records, GradientOfAParameterThatOnlyOneSideHas) {
  const auto gradient_of = [](const std::string& name) -> json {
    return {{"op", "parameter"},       {"module", ""},
            {"phase", "backward"},     {"call", 0},
            {"inputs", json::array()}, {"outputs", {statistics_of(name + ".grad", 1, "g")}}};
  };
  json a = net(), b = net();
  for (const char* name : {"a.weight", "head.weight"}) a.push_back(gradient_of(name));
  b.push_back(gradient_of("head.weight"));
  const Outcome out = compared(a, b);
  ASSERT_TRUE(out.judgement.has_root);
  EXPECT_EQ(out.judgement.first.kind, Kind::kGradient);
  EXPECT_EQ(out.first().name(), "a.weight.grad");
  b[0].erase("parameters");  // it may have another name there
  EXPECT_FALSE(compared(a, b).judgement.has_root);
  b = net();
  a = net();
  for (json* side : {&a, &b}) side->push_back(gradient_of("head.weight"));
  a.push_back(gradient_of("a.weight"));  // the other dump may have ended before
  EXPECT_FALSE(compared(a, b).judgement.has_root);
}

TEST(Records, DataIsWhatTheOutermostModuleReads) {
  json b = net();
  b[0] = module_of("Net.a", "Linear", 1.5, 2.5, 9);
  b[3] = module_of("Net", "Net", 1.5, 4);
  EXPECT_EQ(compared(net(), b).judgement.first.kind, Kind::kData);
}

TEST(Records, CodeBetweenModulesIsNamed) {
  json b = net(5);
  b[2] = module_of("Net.head", "Linear", 3.5, 5);
  const Outcome out = compared(net(), b);
  EXPECT_EQ(out.judgement.first.kind, Kind::kBetween);
  EXPECT_EQ(out.judgement.first.within, "Net");
  EXPECT_EQ(out.first().module, "Net.head");
}

TEST(Records, MissingModuleIsNamed) {
  const json a = net(), b = {a[0], module_of("Net.head", "Linear", 2, 5), module_of("Net", "Net", 1, 5)};
  const Outcome out = compared(a, b);
  EXPECT_EQ(out.judgement.first.kind, Kind::kCalls);
  ASSERT_EQ(out.judgement.first.others.size(), 1U);
  EXPECT_EQ(out.a.records[out.rows[out.judgement.first.others[0]].a].module, "Net.n");
  EXPECT_EQ(out.judgement.only_a, 1U);
}

TEST(Records, WrappersAndTheClassAreNoPartOfNames) {
  json b = net(5);
  for (json& record : b) {
    std::string name = record["module"];
    record["module"] =
        name == "Net" ? "DistributedDataParallel.module" : "DistributedDataParallel.module._orig_mod" + name.substr(3);
  }
  const Outcome out = compared(net(), b);
  EXPECT_EQ(out.judgement.pairs, 4U);
  EXPECT_EQ(out.first().module, "Net.head");
}

TEST(Records, MapNamesRenamedModules) {
  json b = net(5);
  b[0]["module"] = "Net.enc.0";
  b[2]["module"] = "Net.out.1";
  b[2]["op"] = "OtherLinear";
  const std::string map = "# A = B\n\"Net.a\" = \"Net.enc.0\"\nhead = out.1\n";
  const Outcome out = compared(net(), b, map);
  EXPECT_EQ(out.judgement.pairs, 4U);
  EXPECT_EQ(out.judgement.by_structure, 0U);
  EXPECT_EQ(out.first().module, "Net.head");
}

TEST(Records, MapHasStarsAndItsLinesAreChecked) {
  const auto map = parse_name_map("encoder.*.fc = 'enc.*.linear'\n[names]\nhead = out");
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->of("encoder.3.fc"), "enc.3.linear");
  EXPECT_EQ(map->of("head.weight.grad"), "out.weight.grad");
  EXPECT_EQ(map->of("other"), "");
  EXPECT_FALSE(parse_name_map("one\n").ok());
  EXPECT_FALSE(parse_name_map("a = b c\n").ok());
}

TEST(Records, RenamedModulesMatchByStructure) {
  json b = net(5);
  for (std::size_t i = 0; i < 3; ++i) b[i]["module"] = "Net.block." + std::to_string(i);
  const Outcome out = compared(net(), b);
  EXPECT_EQ(out.judgement.by_structure, 3U);
  EXPECT_EQ(out.first().module, "Net.head");
}

TEST(Records, LearnedNoiseRaisesTheBound) {
  json b = net();
  b[2] = module_of("Net.head", "Linear", 3, 4.01);
  EXPECT_TRUE(compared(net(), b).judgement.has_root);
  const LearnedNoise noise = {{"forward\nhead\n0\noutput", 0.01}};
  EXPECT_EQ(compared(net(), b, "", noise).judgement.noise, 1U);
}

TEST(Records, GrowthIsRankedAndBirthsComeFirst) {
  json ops = net(400);
  ops[1]["outputs"][0]["nan"] = 1;
  const auto records = records_of_trace({{"ops", ops}});
  const auto growth = ranked_growth(records);
  ASSERT_EQ(growth.size(), 4U);
  EXPECT_TRUE(growth[0].is_born);
  EXPECT_EQ(records[growth[0].record].module, "Net.n");
  EXPECT_EQ(records[growth[1].record].module, "Net");
  EXPECT_EQ(growth[1].ratio, 400);
  EXPECT_EQ(records[growth[2].record].module, "Net.head");
  const auto modules = module_growth(records, growth);
  ASSERT_EQ(modules.size(), 4U);
  EXPECT_EQ(modules[0].name, "Net");
  EXPECT_EQ(modules[0].records, 4U);
  EXPECT_TRUE(modules[2].is_broken);
  EXPECT_EQ(modules[3].depth, 1U);
}

nlohmann::ordered_json probe(double max) {
  const nlohmann::ordered_json tensor = {{"type", "torch.Tensor"},
                                         {"dtype", "torch.float32"},
                                         {"shape", {2, 2}},
                                         {"Max", 1.0},
                                         {"Min", -1.0},
                                         {"Norm", 2.0}};
  nlohmann::ordered_json out = tensor;
  out["Max"] = max;
  return {{"task", "statistics"},
          {"level", "mix"},
          {"data",
           {{"Module.layer1.Linear.forward.0", {{"input_args", {tensor}}, {"output", {tensor}}}},
            {"Functional.relu.0.forward", {{"input_args", {tensor}}, {"output", {out}}}},
            {"Tensor.add.3.forward", {{"input_args", {tensor, 3, "x"}}, {"output", {out}}}},
            {"Module.layer1.Linear.backward.0", {{"input", {tensor}}, {"output", {tensor}}}},
            {"Module.layer1.Linear.parameters_grad", {{"weight", {tensor}}}}}}};
}

TEST(Msprobe, NamesAndStatistics) {
  const auto document = probe(3);
  ASSERT_TRUE(is_msprobe_dump(document));
  const json stack = {
      {"Functional.relu.0.forward", {"File /a/site-packages/x.py, line 3, in f", "File /a/net.py, line 12, in g"}}};
  const auto records = records_of_msprobe(document, stack);
  ASSERT_EQ(records.size(), 5U);
  EXPECT_EQ(records[0].module, "layer1");
  EXPECT_EQ(records[0].op, "Linear");
  EXPECT_EQ(records[1].op, "relu");
  EXPECT_EQ(records[1].line, 12U);
  EXPECT_EQ(records[1].outputs.at(0).health.max, 3);
  EXPECT_EQ(records[2].call, 3U);
  EXPECT_EQ(records[2].inputs.size(), 1U);
  EXPECT_EQ(records[3].outputs.at(0).arg, "output.grad");
  EXPECT_EQ(records[4].name(), "layer1.weight.grad");
}

TEST(Msprobe, FirstOperatorThatDiffers) {
  Dump a{records_of_msprobe(probe(3), {}), {}}, b{records_of_msprobe(probe(4), {}), {}};
  const auto rows = match_records(a.records, b.records, {});
  const auto judgement = judge_records(a, b, rows, measure_records(a, b, rows, {}));
  ASSERT_TRUE(judgement.has_root);
  EXPECT_EQ(a.records[rows[judgement.first.row].a].op, "relu");
}

TEST(Msprobe, NanAndOddContentAreRead) {
  auto document = probe(3);
  document["data"]["Functional.relu.0.forward"]["output"][0]["Max"] = "nan";
  document["data"]["odd"] = 3;
  document["data"]["Module.x.forward.0"] = {{"input_args", 3}};
  document["data"]["Module.a.B.forward.99999999999999999999"] = nlohmann::ordered_json::object();
  EXPECT_EQ(records_of_msprobe(document, json::array())[1].outputs.at(0).health.nan, 1U);
  EXPECT_FALSE(is_msprobe_dump({{"schema", 1}, {"data", nlohmann::ordered_json::object()}, {"task", "x"}}));
}

}  // namespace
}  // namespace finitude::compare
