#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "show/keywords.h"
#include "show/printable.h"
#include "show/sample_reports.h"
#include "show/show.h"

namespace finitude::show {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string shown(const json& report, int width = 80, bool unicode = true, bool colour = false) {
  return terminal(report, {colour, width, unicode});
}

// As one line with single blanks, so that what is asked does not depend on where a line is wrapped.
std::string joined(const std::string& shown_text) {
  std::istringstream words(shown_text);
  std::string out, word;
  while (words >> word) out += (out.empty() ? "" : " ") + word;
  return out;
}

TEST(Terminal, LossAlarmWithForwardBirth) {
  const std::string out = joined(shown(sample("loss_forward")));
  EXPECT_THAT(out,
              StartsWith("finitude: step 412 stopped before the optimizer: loss is NaN (rank 0). Weights are clean."));
  EXPECT_THAT(out, HasSubstr("born in forward aten::log model.py:87 logp = torch.log(p) in Classifier.head"));
  EXPECT_THAT(out, HasSubstr("input p [32,10] float32 min 0 max 1 3 zeros at rows 4, 9, 31"));
  EXPECT_THAT(out, HasSubstr("output [32,10] float32 min -88.2 max 0 3 x -Inf at rows 4, 9, 31"));
  EXPECT_THAT(out, HasSubstr("aten::mul (model.py:88) 0 x -Inf = NaN \u2192 aten::sum (model.py:88) \u2192 loss"));
  EXPECT_THAT(out, HasSubstr("cause log of an exact zero: softmax underflowed in float32 (log-of-zero) "
                             "[proven by 3 of 3 experiments]"));
  EXPECT_THAT(out, HasSubstr("p clamped at 1e-12: finite log in float64: still -Inf rows 4, 9, 31 left out: finite"));
  EXPECT_THAT(
      out,
      HasSubstr("fix F.log_softmax(logits, -1) at model.py:86 [verified on this step: loss and gradients finite]"));
  EXPECT_THAT(out, HasSubstr("again persistent, by rewind: rewound and run again in place; loss and "
                             "gradients came out with the same bits"));
  EXPECT_THAT(out, HasSubstr("capsule finitude-runs/2026-03-02T09-14-05/step-000412 finitude replay finitude-runs/"));
}

TEST(Terminal, AFiniteTensorNearTheLimitSaysHowNear) {
  nlohmann::json report = sample("loss_forward");
  auto& input = report["alarms"][0]["births"][0]["inputs"][0];
  input["min"] = -3.156e38, input["zero"] = 0, input["subnormal"] = 7;
  EXPECT_THAT(joined(shown(report)), HasSubstr("max 1 0.11 bits below the limit of float32 7 subnormal"));
  input["dtype"] = "bfloat16";
  EXPECT_THAT(joined(shown(report)), HasSubstr("0.1 bits below the limit of bfloat16"));
  input["dtype"] = "float64";
  EXPECT_THAT(joined(shown(report)), Not(HasSubstr("bits below")));
  input["dtype"] = "float16", input["min"] = -1000, input["max"] = 60000;
  EXPECT_THAT(joined(shown(report)), HasSubstr("max 6e+04 0.13 bits below the limit of float16"));
}

TEST(Terminal, CountsOfComplexTensorsAreOfTheirParts) {
  nlohmann::json report = sample("loss_forward");
  report["alarms"][0]["births"][0]["inputs"][0]["dtype"] = "complex64";
  EXPECT_THAT(joined(shown(report)), HasSubstr("3 zeros at rows 4, 9, 31 of 320 real and imaginary parts"));
}

TEST(Terminal, LineNamedByAFixIsPrintedOnce) {
  nlohmann::json report = sample("loss_forward");
  for (const char* named : {"take it out at model.py:86 first", "take it out (model.py:86)"}) {
    report["alarms"][0]["fix"]["text"] = named;
    EXPECT_THAT(joined(shown(report)), HasSubstr("fix " + std::string(named) + " [verified"));
  }
  for (const char* other : {"take it out at model.py:867", "take it out at my_model.py:86"}) {
    report["alarms"][0]["fix"]["text"] = other;
    EXPECT_THAT(joined(shown(report)), HasSubstr("fix " + std::string(other) + " at model.py:86 [verified"));
  }
}

TEST(Terminal, SamplesOfTheGuiltyRows) {
  nlohmann::json report = sample("loss_forward");
  EXPECT_THAT(joined(shown(report)), Not(HasSubstr("of the data set")));
  nlohmann::json& birth = report["alarms"][0]["births"][0];
  birth["samples"] = {1033, 72, 5};
  EXPECT_THAT(joined(shown(report)),
              HasSubstr("data rows 4, 9, 31 of the batch = samples 1033, 72, 5 of the data set"));
  birth["rows"] = {4};
  EXPECT_THAT(joined(shown(report)), Not(HasSubstr("of the data set")));  // one for each row, or none
  birth["samples"] = {72};
  EXPECT_THAT(joined(shown(report)), HasSubstr("row 4 of the batch = sample 72 of the data set"));
  birth.erase("samples");
  EXPECT_THAT(joined(shown(report)), Not(HasSubstr("row 4 of the batch")));
  birth["rows_of"] = 32;  // an experiment found them, no sampler says what they are
  EXPECT_THAT(joined(shown(report)), HasSubstr("row 4 of the batch, which has 32"));
  nlohmann::json& tried = report["alarms"][0]["cause"]["experiments"][0];
  tried["samples"] = {72, 5};
  EXPECT_THAT(joined(shown(report)), HasSubstr(joined({tried["name"]}) + " (samples 72, 5 of the data set)"));
}

TEST(Terminal, PathEndsAtTheSinkOfItsBirth) {
  nlohmann::json report = sample("loss_forward");
  nlohmann::json& alarm = report["alarms"][0];
  alarm["sink"] = {{"kind", "gradient"}, {"name", "first.weight"}};
  EXPECT_THAT(joined(shown(report)), HasSubstr("gradient of first.weight"));
  alarm["births"][0]["sink"] = {{"kind", "gradient"}, {"name", "second.weight"}};
  EXPECT_THAT(joined(shown(report)), HasSubstr("gradient of second.weight"));
}

TEST(Terminal, BackwardBirthNamesNodeAndForwardOp) {
  const std::string out = joined(shown(sample("gradient_backward")));
  EXPECT_THAT(out, StartsWith("finitude: step 7 skipped, training continues: gradient of encoder.scale is NaN "
                              "(rank 0). Weights are clean."));
  EXPECT_THAT(out,
              HasSubstr("born in backward LinalgVectorNormBackward0 (aten::div) backward of aten::linalg_vector_norm"));
  EXPECT_THAT(out, HasSubstr("/normalised_temperature_scaled.py:23"));
  EXPECT_THAT(out, HasSubstr("1 of 12 bad: encoder.scale (4 NaN of 64)"));
  EXPECT_THAT(out, HasSubstr("with rounding_mode = floor"));
  EXPECT_THAT(out, HasSubstr("hidden by aten::where"));
  EXPECT_THAT(out,
              HasSubstr("persistent: the step did the same again, by rewind, loss and gradients equal bit for bit"));
  EXPECT_THAT(out, HasSubstr("[likely, confirmed by 2 of 3 experiments]"));
  EXPECT_THAT(out, HasSubstr("[not tried on the whole step]"));
}

TEST(Terminal, NothingIsSaidOfWhatWasNotDone) {
  const std::string out = shown(sample("gradient_backward"));
  EXPECT_THAT(out, Not(HasSubstr("capsule")));
  EXPECT_THAT(out, Not(HasSubstr("replay")));
  EXPECT_THAT(out, Not(HasSubstr("verified on this step")));
  EXPECT_THAT(shown(sample("data_birth")), Not(HasSubstr("\nfix")));
  EXPECT_THAT(shown(sample("data_birth")), Not(HasSubstr("persistent")));
}

TEST(Terminal, DataBirthOnAnotherRank) {
  const std::string out = joined(shown(sample("data_birth")));
  EXPECT_THAT(out, HasSubstr("loss is NaN in micro-batch 2 (rank 1 of 4)"));
  EXPECT_THAT(out, HasSubstr("born in data batch[0] data.py:41 return torch.tensor(self.table[i])"));
  EXPECT_THAT(out, HasSubstr("2 x NaN at row 5"));
  EXPECT_THAT(out, HasSubstr("no second run was made: the policy is raise"));
}

TEST(Terminal, HarmlessAndDamaged) {
  const std::string out = joined(shown(sample("several")));
  EXPECT_THAT(out, HasSubstr("step 20 was applied: loss is NaN (rank 0). Gradients are finite, "
                             "weights were not in danger."));
  EXPECT_THAT(out,
              HasSubstr("parameter encoder.layers.11.mlp.down.weight is not finite (rank 0). Weights are damaged."));
  EXPECT_THAT(out, HasSubstr("loss 0.7 3.5 81 Inf largest gradient 1 50 4e+04 NaN"));
  EXPECT_THAT(out, HasSubstr("[tried, not verified: finite, but rows 0-3 of the loss changed by 2e-3]"));
  EXPECT_THAT(out, HasSubstr("also in optimizer"));
  EXPECT_THAT(out, HasSubstr("transient: the step was finite when run again"));
}

TEST(Terminal, Clean) {
  EXPECT_EQ(shown(sample("clean"), 0),
            "finitude: no alarm: 413 steps, 21,476 gradients scanned, 2 scaler skips, 0 handled by the script.\n"
            "unwatched 2 gradients of a wrapper subclass: no readable memory\n");
}

TEST(Terminal, UnwatchedSaysWhy) {
  const std::string out = joined(shown(sample("unwatched")));
  EXPECT_THAT(out,
              StartsWith("finitude: nothing that trains was seen: no optimizer and no backward was seen in 1 process"));
  EXPECT_THAT(out, Not(HasSubstr("no alarm")));
  json report = sample("unwatched");
  report["reason"] = "nothing that trains was seen: no optimizer and no backward";
  EXPECT_THAT(joined(shown(report)),
              StartsWith("finitude: nothing that trains was seen: no optimizer and no backward"));
}

TEST(Terminal, AdvisoriesOnly) {
  const std::string out = joined(shown(sample("advisories")));
  EXPECT_THAT(out, StartsWith("finitude: no alarm, 2 advisories: 413 steps"));
  EXPECT_THAT(
      out,
      HasSubstr("advisory handled-by-script, step 12: the script replaced 3 non-finite gradients with nan_to_num"));
  EXPECT_THAT(out, HasSubstr("advisory unowned-gradient: gradient of frozen.weight is Inf"));
}

TEST(Terminal, NoLineIsWiderThanAskedButACommand) {
  for (const auto& [name, report] : samples()) {
    for (const int width : {24, 40, 80, 120}) {
      for (const bool unicode : {true, false}) {
        std::istringstream lines(shown(report, width, unicode));
        for (std::string line; std::getline(lines, line);) {
          if (const std::size_t begin = line.find_first_not_of(' ');
              begin == std::string::npos || line.compare(begin, 9, "finitude ") != 0)
            EXPECT_LE(columns(line), width) << name << ": " << line;
          EXPECT_TRUE(line.empty() || line.back() != ' ') << name << ": " << line;
        }
      }
    }
  }
}

TEST(Terminal, HostileStringsCannotReachTheTerminal) {
  const std::string out = shown(sample("hostile"));
  for (const char c : out) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c);
  EXPECT_THAT(out, Not(HasSubstr("\u202E")));
  EXPECT_THAT(out, Not(HasSubstr("\nfinitude: all clean")));
  EXPECT_THAT(out, HasSubstr("\\x1b[2J"));
}

TEST(Terminal, AsciiOnlyWhereAsked) {
  for (const auto& [name, report] : samples()) {
    for (const char c : shown(report, 80, false)) ASSERT_LT(static_cast<unsigned char>(c), 0x80) << name;
  }
}

TEST(Terminal, ColourOnlyWhereAskedAndNeverAcrossLines) {
  const std::string plain = shown(sample("loss_forward"));
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  std::string stripped;
  bool on = false;
  const std::string coloured = shown(sample("loss_forward"), 80, true, true);
  EXPECT_THAT(coloured, HasSubstr("\x1b[1;31m"));
  for (std::size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\x1b') {
      const std::size_t end = coloured.find('m', i);
      on = coloured.substr(i, end - i) != "\x1b[0";
      i = end;
    } else {
      EXPECT_FALSE(on && coloured[i] == '\n');
      stripped += coloured[i];
    }
  }
  EXPECT_FALSE(on);
  EXPECT_EQ(stripped, plain);
}

TEST(Terminal, NonFiniteNumbersInTheDocumentItself) {
  json report = sample("several");
  report["alarms"][1]["history"]["loss"] = {1.0, std::nan(""), INFINITY, -INFINITY};
  report["alarms"][0]["births"][0]["outputs"] = json::array({{{"shape", {2}},
                                                              {"dtype", "float32"},
                                                              {"nan", 1},
                                                              {"inf", 0},
                                                              {"numel", 2},
                                                              {"min", std::nan("")},
                                                              {"max", INFINITY}}});
  EXPECT_THAT(joined(shown(report)), HasSubstr("min NaN max Inf 1 x NaN"));
}

TEST(Terminal, ACommandIsOnOneLine) {
  json report = sample("loss_forward");
  const std::string folder = "finitude-runs/of a long name/2026-03-02T09-14-05/step-000412";
  report["alarms"][0]["capsule"] = folder;
  report["alarms"][0]["capsule_pending"] = true;
  report["alarms"][0]["cause"]["text"] = "see `finitude scan some/checkpoint/of/the/run.pt` for all that it holds";
  for (const int width : {24, 40, 80}) {
    std::istringstream lines(shown(report, width));
    int found = 0;
    for (std::string line; std::getline(lines, line);) {
      found += line.find("finitude replay -- '" + folder + "'") != std::string::npos;
      found += line.find("`finitude scan some/checkpoint/of/the/run.pt`") != std::string::npos;
    }
    EXPECT_EQ(found, 2) << shown(report, width);
  }
}

TEST(Terminal, OptionsAreNamedAsTheProgramHasThem) {
  json report = sample("loss_forward");
  report["alarms"][0]["policy"] = "stop";
  report["alarms"][0]["text"] = "loss is NaN; there is no copy (--undo-mb); `finitude run --level tape`";
  EXPECT_THAT(joined(shown(report)), HasSubstr("next --on-alarm skip continues"));
  report["by_watch"] = true;
  const std::string out = joined(shown(report));
  EXPECT_THAT(out, HasSubstr("next watch(on_alarm=\"skip\") continues without such a step, warn applies it"));
  EXPECT_THAT(out, HasSubstr("there is no copy (undo_mb); `finitude run --level tape`"));
  EXPECT_EQ(as_keywords("--on-alarm rollback --rollback-every N goes back --max-skips 3, --level what"),
            "watch(on_alarm=\"rollback\", rollback_every=N) goes back watch(max_skips=3), level what");
  EXPECT_EQ(as_keywords("--resume COMMAND --then --level"), "--resume COMMAND then level");
}

TEST(Terminal, AReplayCommandIsSafeToPaste) {
  json report = sample("loss_forward");
  report["alarms"][0]["capsule"] = "x'; rm -rf ~; '";
  EXPECT_THAT(joined(shown(report)), HasSubstr("finitude replay -- 'x'\\''; rm -rf ~; '\\'''"));
}

TEST(Terminal, ProgramWithoutPythonGetsItsOwnAdvice) {
  json report = sample("loss_forward");
  report["alarms"][0]["capsule"] = "runs/step-3";
  report["alarms"][0]["policy"] = "stop";
  for (const bool cpp : {false, true}) {
    report["python"] = cpp ? json() : json("3.11.7");
    const std::string out = joined(shown(report));
    EXPECT_THAT(out, HasSubstr(cpp ? "finitude-replay runs/step-3" : "finitude replay runs/step-3"));
    EXPECT_THAT(out,
                HasSubstr(cpp ? "next RecorderOptions::on_alarm = OnAlarm::kSkip" : "next --on-alarm skip continues"));
    EXPECT_THAT(html(report), HasSubstr(cpp ? "finitude-replay runs/step-3" : "finitude replay runs/step-3"));
    const std::string idle = joined(shown({{"schema", 1}, {"outcome", "unwatched"}, {"python", report["python"]}}));
    EXPECT_THAT(idle, HasSubstr(cpp ? "Recorder::step runs and judges a step" : "`finitude run` watches"));
  }
}

TEST(Terminal, StepNeverRunAgainSuggestsTheTape) {
  json report = sample("loss_forward");
  json& alarm = report["alarms"][0];
  alarm["policy"] = "stop";
  const char* const skip = "next --on-alarm skip continues";
  const char* const tape = "next --level tape records the operators of every step";
  EXPECT_THAT(joined(shown(report)), HasSubstr(skip));
  alarm["births"] = json::array();
  alarm["rerun"] = "not-run";
  alarm["rerun_text"] = "rewind: an iterator cannot be set back";
  alarm["cause"] = {{"class", "unknown"},
                    {"confidence", "possible"},
                    {"text", "the step was not run again"},
                    {"experiments", json::array()}};
  alarm["level"] = "gate";
  EXPECT_THAT(joined(shown(report)), HasSubstr(tape));
  for (const char* other : {"tape", "trace"}) {
    alarm["level"] = other;
    EXPECT_THAT(joined(shown(report)), HasSubstr(skip)) << other << " was asked for already";
  }
  alarm["level"] = "gate";
  alarm["rerun_text"] = "";
  EXPECT_THAT(joined(shown(report)), HasSubstr(skip)) << "no way was tried";
}

TEST(Terminal, AnotherPolicyIsAdvisedOnlyWhereItWouldDo) {
  json report = sample("loss_forward");
  json& alarm = report["alarms"][0];
  alarm["policy"] = "stop";
  const auto advises = [&](const char* action, const char* found) {
    alarm["action"] = action;
    alarm["text"] = found;
    return joined(shown(report)).find("next --on-alarm skip") != std::string::npos;
  };
  EXPECT_TRUE(advises("stopped", "loss is NaN"));
  EXPECT_TRUE(advises("the step was undone, stopped", "the optimizer wrote 3 NaN"));
  EXPECT_FALSE(advises("the script's own exception", "loss is NaN"));
  EXPECT_FALSE(advises("stopped", "the script dropped 10 steps in a row by itself: the loss was not finite"));
  alarm["weights"] = "damaged";  // they stay so
  EXPECT_FALSE(advises("stopped after the optimizer", "the optimizer wrote 3 NaN"));
}

TEST(Terminal, ATensorWhoseValuesWereNotReadIsNotCalledEmpty) {
  json report = sample("loss_forward");
  json& input = report["alarms"][0]["births"][0]["inputs"][0];
  input = {{"shape", {32, 10}}, {"dtype", "float32"}, {"numel", 0}};
  EXPECT_THAT(joined(shown(report)), HasSubstr("input [32,10] float32 not scanned"));
  input["shape"] = {0, 10};
  EXPECT_THAT(joined(shown(report)), HasSubstr("input [0,10] float32 empty"));
}

TEST(Terminal, WhatWasDoneIsReadFromTheAction) {
  json report = sample("loss_forward");
  json& alarm = report["alarms"][0];
  const auto start = [&](const char* action, const char* found) {
    alarm["action"] = action;
    alarm["text"] = found;
    return joined(shown(report, 0)).substr(10);
  };
  EXPECT_THAT(start("reported, the step is applied", "loss is NaN"),
              StartsWith("step 412 was applied: loss is NaN (rank 0)."));
  EXPECT_THAT(start("the step was left out", "loss is NaN"),
              StartsWith("step 412 skipped, training continues: loss is NaN"));
  EXPECT_THAT(start("the script's own exception", "loss is NaN"),
              StartsWith("step 412 ended by the script's own exception: loss"));
  EXPECT_THAT(start("stopped", "step 412: as the writer says"),
              StartsWith("step 412: as the writer says (rank 0). Weights are clean."));
  EXPECT_THAT(start("stopped", "gradient of ranker.weights is not finite"),
              HasSubstr("not finite (rank 0). Weights are clean."));
  EXPECT_THAT(start("the step was undone", "the optimizer wrote 3 NaN"),
              StartsWith("step 412 was undone, training continues: the optimizer wrote 3 NaN"));
  EXPECT_THAT(start("the step was undone, stopped", "the optimizer wrote 3 NaN"),
              StartsWith("step 412 was undone and training stopped: the optimizer wrote 3 NaN"));
  alarm["weights"] = "damaged";
  EXPECT_THAT(
      start("stopped", "the optimizer wrote 3 NaN"),
      StartsWith("step 412 stopped after the optimizer: the optimizer wrote 3 NaN (rank 0). Weights are damaged."));
  alarm["optimizer"] = "manual updates";  // there is none
  EXPECT_THAT(start("stopped", "loss is NaN"), StartsWith("step 412 stopped after the update: loss is NaN"));
  alarm["weights"] = "clean";
  EXPECT_THAT(start("stopped", "loss is NaN"), StartsWith("step 412 stopped before the update: loss is NaN"));
}

TEST(Terminal, WhatTheProgramSavedIsShown) {
  json report = sample("loss_forward");
  const json input = report["alarms"][0]["births"][0]["inputs"][0];
  report["alarms"][0]["saved"] = {{"scores", input}, {"unread", nullptr}};
  report["alarms"][0]["saved"]["scores"]["arg"] = "scores";
  report["alarms"][0]["saved_values"] = "runs/a/saved-000412.safetensors";
  const std::string out = joined(shown(report));
  EXPECT_THAT(out, HasSubstr("saved scores [32,10] float32 min 0 max 1"));
  EXPECT_THAT(out, HasSubstr("runs/a/saved-000412.safetensors their values"));
}

TEST(Terminal, ManyOfEverythingStaysShort) {
  json report = sample("loss_forward");
  json alarm = report["alarms"][0];
  const auto repeat = [](json& list) { list = json(std::vector<json>(300, list[0])); };
  for (const char* key : {"path", "births"}) repeat(alarm[key]);
  repeat(alarm["births"][0]["inputs"]);
  repeat(alarm["gradients"]["bad"]);
  report["alarms"] = json::array();
  for (int i = 0; i < 30; ++i) report["alarms"].push_back(alarm);
  const std::string out = shown(report);
  EXPECT_LT(std::count(out.begin(), out.end(), '\n'), 1500);
  EXPECT_THAT(out, HasSubstr("and 10 alarms more in the JSON report"));
  EXPECT_THAT(out, HasSubstr("(293 more)"));
}

TEST(Terminal, EmptyAlarmIsShownAsFarAsPossible) {
  EXPECT_THAT(shown(json{{"schema", 1}, {"outcome", "alarm"}, {"alarms", json::array({json::object()})}}),
              StartsWith("finitude: step 0"));
  EXPECT_EQ(shown(json()), "finitude: not a report\n");
}

}  // namespace
}  // namespace finitude::show
