#include "signal/step_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace finitude::signal {
namespace {

using ::testing::HasSubstr;

struct Training {
  StepWatch watch;
  std::mt19937 random{11};
  std::vector<Warning> warnings;

  void step(std::uint64_t i, double loss, double gradient, std::vector<float> gradients = {}, float scale = 0) {
    if (watch.note({i, loss, gradient, 0.1, scale}, gradients)) {
      for (const Warning& w : watch.take()) warnings.push_back(w);
    }
  }
  double noise(double by) { return std::exp(std::normal_distribution<double>(0, by)(random)); }
};

TEST(StepWatch, SlowGrowthIsWarnedOfWithItsOnset) {
  Training run;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const double grown = std::pow(1.03, i > 200 ? static_cast<double>(i - 200) : 0);
    run.step(i, grown * run.noise(0.05), 2 * grown * run.noise(0.1));
  }
  ASSERT_FALSE(run.warnings.empty());
  const Warning& first = run.warnings.front();
  EXPECT_EQ(first.what, What::kGrowth);
  EXPECT_EQ(first.of, Quantity::kLoss);
  EXPECT_NEAR(static_cast<double>(first.since), 200, 12);
  EXPECT_LT(first.step, 290u);
  EXPECT_NEAR(first.factor, 1.03, 0.01);
  ASSERT_TRUE(first.horizon);
  const double to_limit = std::log(3.4e38) / std::log(1.03) - static_cast<double>(first.step - 200);
  EXPECT_LT(static_cast<double>((*first.horizon)[0]), to_limit);
  EXPECT_GT(static_cast<double>((*first.horizon)[1]), to_limit);
  EXPECT_THAT(in_words(first, "loss"), HasSubstr("the loss grew"));
}

TEST(StepWatch, ASpikeAnywhereHidesNoGrowth) {
  const auto first_of = [](std::uint64_t spike) {
    Training run;
    for (std::uint64_t i = 0; i < 120; ++i) {
      const double grown = std::pow(1.2, i > 60 ? static_cast<double>(i - 60) : 0) * (i == spike ? 1e6 : 1);
      run.step(i, grown * run.noise(0.02), grown * run.noise(0.02));
    }
    std::erase_if(run.warnings, [](const Warning& w) { return w.what == What::kOutlier; });
    return run.warnings.empty() ? Warning{} : run.warnings.front();
  };
  const Warning without = first_of(1000);
  for (std::uint64_t spike = 0; spike < 90; ++spike) {
    const Warning with = first_of(spike);
    EXPECT_EQ(with.what, What::kGrowth) << spike;
    EXPECT_NEAR(static_cast<double>(with.since), static_cast<double>(without.since), 3) << spike;
    EXPECT_NEAR(static_cast<double>(with.step), static_cast<double>(without.step), 8) << spike;
    EXPECT_NEAR(std::log(with.factor), std::log(without.factor), 0.1 * std::log(without.factor)) << spike;
  }
}

TEST(StepWatch, ASingleBadBatchIsAnOutlier) {
  for (const double noise : {0.05, 0.5}) {
    Training run;
    for (std::uint64_t i = 0; i < 100; ++i) {
      const double bad = i == 50 ? 27'000 : 1;
      run.step(i, 15.8 * bad * run.noise(noise), 3 * std::sqrt(bad) * run.noise(noise));
    }
    ASSERT_EQ(run.warnings.size(), 1u);
    const Warning& found = run.warnings[0];
    EXPECT_EQ(found.what, What::kOutlier);
    EXPECT_EQ(found.step, 50u);
    EXPECT_EQ(found.since, 50u);
    EXPECT_NEAR(std::log10(found.to / found.from), std::log10(27'000), 1);
    EXPECT_THAT(in_words(found, "loss"), HasSubstr("the loss of this step alone is"));
  }
}

TEST(StepWatch, AnOutlierIsJudgedByTheScatterAndByWhatClippingLeaves) {
  const auto outliers = [](double times, double noise, double clip) {
    Training run;
    for (std::uint64_t i = 0; i < 100; ++i) {
      const double bad = i == 50 ? times : 1, norm = bad * run.noise(noise);
      run.watch.note({i, 2 * bad * run.noise(noise), norm, 0.1, 0, norm, clip});
      for (const Warning& w : run.watch.take()) run.warnings.push_back(w);
    }
    return run.warnings.size();
  };
  EXPECT_EQ(outliers(100, 0.01, 0), 1u);
  EXPECT_EQ(outliers(100, 0.5, 0), 0u);
  EXPECT_EQ(outliers(1e5, 0.5, 0), 1u);
  EXPECT_EQ(outliers(1e5, 0.5, 1.0), 0u);
}

TEST(StepWatch, HorizonOfOneStepIsInTheSingular) {
  Warning w;
  w.horizon = {1, 1};
  EXPECT_THAT(in_words(w, "loss"), ::testing::EndsWith("values overflow in 1 step"));
  w.horizon = {4, 4};
  EXPECT_THAT(in_words(w, "loss"), ::testing::EndsWith("values overflow in 4 steps"));
  w.horizon = {2, 5};
  EXPECT_THAT(in_words(w, "loss"), ::testing::EndsWith("values overflow in 2 to 5 steps"));
}

TEST(StepWatch, SlowGrowthIsSeenInBlocks) {
  Training run;
  for (std::uint64_t i = 0; i < 12000; ++i)
    run.step(i, std::pow(1.0008, i) * run.noise(0.2), std::pow(1.0008, i) * run.noise(0.2));
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_LT(run.warnings.front().step, 6000u);
  EXPECT_NEAR(run.warnings.front().factor, 1.0008, 2e-4);
}

TEST(StepWatch, LossFallingBelowZeroDoesNotGrow) {
  Training run;
  for (std::uint64_t i = 0; i < 2000; ++i) run.step(i, 1 - 0.01 * static_cast<double>(i), run.noise(0.1));
  EXPECT_TRUE(run.warnings.empty());
}

TEST(StepWatch, SaidAgainWhenTenfoldAndHundredfoldWorse) {
  Training run;
  for (std::uint64_t i = 0; i < 300; ++i) run.step(i, 1, std::pow(1.15, i > 50 ? static_cast<double>(i - 50) : 0));
  ASSERT_GT(run.warnings.size(), 3u);
  double worse = 9.9;
  for (std::size_t i = 1; i < run.warnings.size(); ++i, worse *= worse) {
    EXPECT_GE(run.warnings[i].to, worse * run.warnings[i - 1].to);
    EXPECT_EQ(run.warnings[i].since, run.warnings[0].since);
  }
}

TEST(StepWatch, AnExplosionIsAFewWarnings) {
  Training run;
  for (std::uint64_t i = 0; i < 120; ++i) {
    const double grown = i > 80 ? std::pow(8, static_cast<double>(i - 80)) : 1;
    run.step(i, grown, grown);
  }
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_LE(run.warnings.size(), 8u);  // of loss and gradients, over 35 decades
  EXPECT_EQ(run.warnings.back().what, What::kGrowth);
}

TEST(StepWatch, AnExplosionIsSeenInItsThirdStep) {
  Training run;
  for (std::uint64_t i = 0; i < 4; ++i) run.step(i, std::pow(1e6, i), std::pow(1e4, i));
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_EQ(run.warnings.front().step, 3u);
  ASSERT_TRUE(run.warnings.front().horizon);
  EXPECT_LE((*run.warnings.front().horizon)[1], 4u);
}

TEST(StepWatch, AJumpGoesBeyondAllBeforeInTwoSteps) {
  const auto warned = [](double before, double first, double second) {
    Training run;
    for (std::uint64_t i = 0; i < 100; ++i) run.step(i, i == 40 ? before : run.noise(0.1), run.noise(0.1));
    run.step(100, first, 1);
    run.step(101, second, 1);
    return std::ranges::count(run.warnings, What::kGrowth, &Warning::what);
  };
  EXPECT_EQ(warned(1, 4, 100), 1);
  EXPECT_EQ(warned(1, 2, 100), 0);    // by one step
  EXPECT_EQ(warned(1, 400, 100), 0);  // it comes back
  EXPECT_EQ(warned(20, 4, 100), 0);   // it has been nearly as large
  EXPECT_EQ(warned(1, 0.01, 1), 0);   // from below
}

TEST(StepWatch, AnEarlyWarningSaysWhereAllOfTheGrowthBegan) {
  for (const double fast : {1.3, 4.0, 20.0}) {
    Training run;
    for (std::uint64_t i = 0; i < 200 && run.warnings.empty(); ++i) {
      const double slow = std::pow(1.15, std::clamp(static_cast<double>(i) - 60, 0.0, 17.0));
      const double grown = slow * std::pow(fast, i > 77 ? static_cast<double>(i - 77) : 0);
      run.step(i, grown * run.noise(0.02), grown * run.noise(0.02));
    }
    ASSERT_FALSE(run.warnings.empty()) << fast;
    const Warning& first = run.warnings.front();
    EXPECT_LE(first.step, 80u) << fast;
    EXPECT_NEAR(static_cast<double>(first.since), 60, 4) << fast;
    EXPECT_NEAR(first.from, 1, 0.5) << fast;
  }
}

TEST(StepWatch, TheParameterThatGrowsAloneIsNamed) {
  Training run;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const double grown = std::pow(1.1, i > 60 ? static_cast<double>(i - 60) : 0);
    run.step(i, 1, grown, {1.0f, static_cast<float>(grown), 0.5f, -1.0f});
  }
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_EQ(run.warnings.front().parameter, 1u);
  EXPECT_FALSE(run.warnings.front().is_widespread);
  EXPECT_THAT(in_words(run.warnings.front(), "head.weight"), HasSubstr("most in head.weight"));
}

TEST(StepWatch, AGradientThatStaysZeroIsDead) {
  Training run;
  for (std::uint64_t i = 0; i < 600; ++i)
    run.step(i, 1 * run.noise(0.1), 1 * run.noise(0.1), {1.0f, i < 100 ? 0.5f : 0.0f, 0.0f, -1.0f});
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_EQ(run.warnings[0].what, What::kDead);
  EXPECT_EQ(run.warnings[0].parameter, 1u);
  EXPECT_EQ(run.warnings[0].since, 100u);
}

TEST(StepWatch, ALossScaleThatCollapsesIsWarnedOf) {
  Training run;
  float scale = 65536;
  for (std::uint64_t i = 0; i < 60; ++i) {
    if (i > 20 && scale > 1) scale /= 2;
    run.step(i, run.noise(0.1), run.noise(0.1), {}, scale);
  }
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_EQ(run.warnings.front().what, What::kScale);
}

TEST(StepWatch, WhatIsHealthyIsLeftAlone) {
  const std::vector<std::pair<const char*, std::function<std::pair<double, double>(Training&, std::uint64_t)>>>
      healthy = {
          {"noise", [](Training& r, auto) { return std::pair(r.noise(0.5), r.noise(0.8)); }},
          {"falling",
           [](Training& r, auto i) {
             return std::pair(std::exp(-0.002 * double(i)) * r.noise(0.2), std::exp(-0.001 * double(i)) * r.noise(0.3));
           }},
          {"spikes",
           [](Training& r, auto i) {
             return std::pair((i % 97 == 0 ? 200 : 1) * r.noise(0.2), (i % 97 == 0 ? 1e4 : 1) * r.noise(0.3));
           }},
          {"gradients grow while the loss falls",
           [](Training& r, auto i) {
             return std::pair(std::exp(-0.001 * double(i)) * r.noise(0.02),
                              std::pow(1.01, double(std::min<std::uint64_t>(i, 900))));
           }},
          {"a loss of both signs",
           [](Training& r, auto i) {
             return std::pair(std::sin(0.7 * double(i)) * (1 + 0.01 * double(i)), r.noise(0.3));
           }},
          {"a loss at the end of its digits",
           [](Training& r, auto i) {
             return std::pair(i < 100 ? 1.0 : 1e-16 * r.noise(2) * (1 + 0.1 * double(i)), r.noise(0.3));
           }},
          {"the squared errors of single samples",
           [](Training& r, auto) {
             const double error = std::normal_distribution<double>(0, 1)(r.random);
             return std::pair(error * error, std::fabs(error) * r.noise(0.3));
           }},
          {"a level that shifts",
           [](Training& r, auto i) {
             return std::pair((i < 700 ? 1 : 4) * r.noise(0.1), (i < 700 ? 1 : 4) * r.noise(0.3));
           }},
      };
  for (const auto& [name, values] : healthy) {
    Training run;
    for (std::uint64_t i = 0; i < 4000; ++i) {
      const auto [loss, gradient] = values(run, i);
      run.step(i, loss, gradient);
    }
    EXPECT_TRUE(run.warnings.empty()) << name << ": step " << run.warnings.front().step << ": "
                                      << in_words(run.warnings.front(), "a parameter");
  }
}

TEST(StepWatch, NonFiniteValuesAreNotKept) {
  Training run;
  const double nan = std::nan(""), inf = HUGE_VAL;
  for (std::uint64_t i = 0; i < 300; ++i)
    run.step(i, i % 3 == 0 ? nan : 1 * run.noise(0.1), i % 5 == 0 ? inf : 1 * run.noise(0.1),
             {static_cast<float>(nan)});
  EXPECT_TRUE(run.warnings.empty());
}

TEST(StepWatch, WarningsComeBackFromJson) {
  Training run;
  for (std::uint64_t i = 0; i < 120; ++i)
    run.step(i, std::pow(1.2, i), std::pow(1.2, i), {1.0f, static_cast<float>(std::pow(1.2, i))});
  ASSERT_FALSE(run.warnings.empty());
  EXPECT_EQ(as_json(from_json(as_json(run.warnings))), as_json(run.warnings));
}

TEST(StepWatch, GrowthIsOfTheFirstSteps) {
  StepWatch watch;
  EXPECT_TRUE(std::isnan(watch.gradient_growth(1)));
  for (std::uint64_t i = 0; i < 40; ++i)
    watch.note({.step = i, .loss = 1, .grad_absmax = i < 20 ? 0.5 : 4.0, .lr = 0.1});
  EXPECT_NEAR(watch.gradient_growth(4), 8, 1e-9);
  EXPECT_TRUE(std::isnan(watch.gradient_growth(0)));
}

}  // namespace
}  // namespace finitude::signal
