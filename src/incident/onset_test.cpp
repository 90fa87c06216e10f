#include "incident/onset.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace finitude::incident {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Onset, IsOfWhatBeganToGrowFirst) {
  std::vector<AppliedStep> steps;
  for (std::uint64_t i = 0; i < 40; ++i)
    steps.push_back({i, i < 20 ? 1.0 : std::pow(2.0, double(i) - 19), i < 25 ? 1.0 : std::pow(3.0, double(i) - 24),
                     i < 18 ? 0.1 : 5});
  const auto onset = onset_of(steps, json::array(), "SGD");
  EXPECT_EQ(onset["name"], "loss");
  EXPECT_NEAR(onset["step"].get<double>(), 19, 2);
  EXPECT_NEAR(onset["rate"].get<double>(), 2, 0.1);
  EXPECT_EQ(onset["lr"], 5);
  EXPECT_THAT(onset["text"].get<std::string>(), HasSubstr("the learning rate rose from 0.1 to 5 after step 17"));
  EXPECT_EQ(onsets_of(steps).size(), 3u);
}

TEST(Onset, IsThatOfTheWarningOfSameGrowth) {
  std::vector<AppliedStep> steps;
  for (std::uint64_t i = 0; i < 40; ++i) steps.push_back({i, i < 20 ? 1.0 : std::pow(2.0, double(i) - 19), 1, 0.1});
  const auto warned = [](const char* name, int since, int step) {
    return json{{"what", "growth"},  {"name", name},      {"since", since},
                {"step", step},      {"text", "it grew"}, {"evidence", {{"from", 0.5}, {"factor_per_step", 1.5}}},
                {"optimizer", "SGD"}};
  };
  const auto onset = onset_of(steps, json::array({warned("loss", 9, 30)}), "SGD");
  EXPECT_EQ(onset["step"], 9);
  EXPECT_NEAR(onset["rate"].get<double>(), std::pow(std::pow(2.0, 20) / 0.5, 1.0 / 30), 1e-6);
  EXPECT_THAT(onset["text"].get<std::string>(), HasSubstr("the loss grew since step 9, by a factor of"));
  for (const json& other : {warned("gradient", 9, 30), warned("loss", 2, 8)})  // of another quantity; of another time
    EXPECT_NEAR(onset_of(steps, json::array({other}), "SGD")["step"].get<double>(), 19, 2);
}

// A noisy growth that becomes steeper at its end: no straight line fits its logarithm.
TEST(Onset, IsThatOfAWarningWhoseEndIsTooSteep) {
  std::vector<AppliedStep> steps;
  for (std::uint64_t i = 0; i < 250; ++i) {
    const double rise = i < 125 ? 0 : (double(i) - 125) / 25;
    steps.push_back({i, 0.06 * std::exp(rise + (i % 2 == 0 ? -2 : 2)), 4, 0.1});
  }
  const double losses[] = {31.4, 220, 4920, 1.1e7, 1.54e18}, gradients[] = {9.43, 60.8, 493, 2e5, 4.6e13};
  for (std::size_t i = 0; i < 5; ++i) steps.push_back({250 + i, losses[i], gradients[i], 0.1});
  ASSERT_EQ(onset_of(steps, json::array(), "SGD")["name"], "gradient");
  const auto evidence = json{{"from", 0.05}, {"factor_per_step", 1.05}};
  for (const int warned : {240, 253}) {  // before the gradients grew; while they did
    const json warning = {{"what", "growth"}, {"name", "loss"},       {"since", 125},      {"step", warned},
                          {"text", "grew"},   {"evidence", evidence}, {"optimizer", "SGD"}};
    const auto onset = onset_of(steps, json::array({warning}), "SGD");
    EXPECT_EQ(onset["name"], warned == 240 ? "gradient" : "loss");
    EXPECT_EQ(onset["step"], warned == 240 ? 251 : 125);
  }
}

TEST(Onset, OfWeightsIsThatOfTheirWarning) {
  const std::vector<AppliedStep> steps = {{0, 1, 1, 0.1}, {1, 1, 1, 0.1}};
  const auto warned = [](const char* name, const char* optimizer) {
    return json{{"what", "growth"},
                {"name", name},
                {"since", 1},
                {"step", 1},
                {"evidence", {{"factor_per_step", 1.5}}},
                {"optimizer", optimizer},
                {"text", "weight grew"}};
  };
  EXPECT_EQ(onset_of(steps, json::array({warned("weight", "SGD")}), "SGD")["name"], "weight");
  EXPECT_TRUE(onset_of(steps, json::array({warned("weight", "SGD")}), "Adam").is_null());
  EXPECT_TRUE(onset_of(steps, json::array({warned("loss", "SGD")}), "SGD").is_null());
  EXPECT_TRUE(onset_of({}, json::array(), "SGD").is_null());
}

// A loss that goes up and down while the weights of a layer grow, and explodes at the end.
TEST(Onset, IsThatOfWeightsThatGrewFirst) {
  std::vector<AppliedStep> steps;
  for (std::uint64_t i = 0; i < 900; ++i) steps.push_back({i, i % 2 == 0 ? 0.7 : 0.5, 1, 0.1});
  for (std::uint64_t i = 0; i < 5; ++i) steps.push_back({900 + i, std::pow(1e4, double(i) + 1), 1, 0.1});
  const auto warned = [](const char* quantity, const char* name, int since, int step, double from, double to) {
    const double factor = std::pow(to / from, 1.0 / (step - since));
    return json{{"what", "growth"},
                {"quantity", quantity},
                {"name", name},
                {"since", since},
                {"step", step},
                {"text", "grew; if it continues, values overflow in 10 to 20 steps"},
                {"evidence", {{"from", from}, {"to", to}, {"factor_per_step", factor}}},
                {"optimizer", "SGD"}};
  };
  const json early = warned("weight", "emb.weight", 64, 384, 1, 24),
             late = warned("weight", "emb.weight", 128, 832, 2, 1000),
             of_loss = warned("loss", "head.bias", 899, 903, 0.7, 1e16);
  const auto onset = onset_of(steps, json::array({early, late, of_loss}), "SGD");
  EXPECT_EQ(onset["name"], "emb.weight");
  EXPECT_EQ(onset["step"], 64);
  const std::string text = onset["text"];
  EXPECT_THAT(text, HasSubstr("the largest weight of emb.weight grew since step 64, by a factor of 1.01 a step, from 1 "
                              "to 1000 at step 832; the loss grew since step 899"));
  EXPECT_THAT(text, Not(HasSubstr("head.bias")));
  // It was over long before; it began with the loss.
  EXPECT_EQ(onset_of(steps, json::array({warned("weight", "emb.weight", 0, 100, 1, 24)}), "SGD")["step"], 899);
  EXPECT_EQ(onset_of(steps, json::array({of_loss, warned("weight", "w", 64, 903, 1, 24)}), "SGD")["step"], 899);
}

TEST(Onset, OfAJaggedGrowthIsThatOfItsLastWarning) {
  std::vector<AppliedStep> steps;
  for (std::uint64_t i = 0; i < 400; ++i) steps.push_back({i, i < 200 ? 1.0 : i % 7 == 0 ? 1e5 : 20.0, 1, 0.1});
  const auto warned = [](int step, double factor) {
    return json{{"what", "growth"},
                {"quantity", "loss"},
                {"name", "fc.weight"},
                {"since", 190},
                {"step", step},
                {"text", "grew"},
                {"evidence", {{"from", 1.0}, {"to", 20.0}, {"factor_per_step", factor}}},
                {"optimizer", "SGD"}};
  };
  const auto onset = onset_of(steps, json::array({warned(380, 1.1)}), "SGD");
  EXPECT_EQ(onset["step"], 190);
  EXPECT_EQ(onset["name"], "fc.weight");
  EXPECT_THAT(onset["text"].get<std::string>(), HasSubstr("the loss grew since step 190"));
  EXPECT_TRUE(onset_of(steps, json::array({warned(205, 1.1)}), "SGD").is_null());  // and has not grown since
}

}  // namespace
}  // namespace finitude::incident
