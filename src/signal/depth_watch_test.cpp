#include "signal/depth_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace finitude::signal {
namespace {

// Layers of a matrix and a bias, the matrix with this magnitude.
struct Model {
  std::vector<float> gradients;
  std::vector<std::uint8_t> is_matrix;

  Model(int layers, const std::function<double(int)>& magnitude) {
    for (int i = 0; i < layers; ++i) {
      gradients.push_back(static_cast<float>(magnitude(i)));
      is_matrix.push_back(1);
      gradients.push_back(1.0f);
      is_matrix.push_back(0);
    }
  }
};

std::vector<Warning> warnings_of(const std::function<Model(std::uint64_t)>& model, std::uint64_t steps = 200) {
  DepthWatch watch;
  std::vector<Warning> all;
  for (std::uint64_t i = 0; i < steps; ++i) {
    const Model now = model(i);
    for (const Warning& w : watch.note(i, 0.1, now.gradients, now.is_matrix)) all.push_back(w);
  }
  return all;
}

TEST(DepthWatch, VanishingIsNamedWithItsFactor) {
  const auto found = warnings_of([](std::uint64_t) { return Model(10, [](int i) { return std::pow(6.0, i - 9); }); });
  ASSERT_EQ(found.size(), 1u);
  const Warning& w = found.front();
  EXPECT_EQ(w.what, What::kVanishingDepth);
  EXPECT_EQ(w.parameter, 0u);
  EXPECT_EQ(w.last_parameter, 18u);
  EXPECT_EQ(w.layers, 10u);
  EXPECT_NEAR(w.factor, 6, 1e-3);
  EXPECT_GE(w.step, 64u + 20);
  EXPECT_THAT(in_words(w, "0.weight", "18.weight"),
              ::testing::HasSubstr("vanish over the depth: largest magnitude 1 in 18.weight, 9.92e-08 in 0.weight"));
  const std::vector<Warning> again = from_json(as_json(found));
  EXPECT_EQ(again.front().last_parameter, 18u);
  EXPECT_EQ(again.front().layers, 10u);
}

TEST(DepthWatch, ExplodingIsTheOtherWayRound) {
  const auto found = warnings_of([](std::uint64_t) { return Model(8, [](int i) { return std::pow(5.0, 7 - i); }); });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().what, What::kExplodingDepth);
  EXPECT_NEAR(found.front().factor, 5, 1e-3);
}

TEST(DepthWatch, TenTimesWorseIsSaidAgain) {
  const auto found = warnings_of([](std::uint64_t step) {
    const double base = step < 120 ? 6 : 12;
    return Model(10, [base](int i) { return std::pow(base, i - 9); });
  });
  EXPECT_EQ(found.size(), 2u);
}

TEST(DepthWatch, WhatPassesIsNotSaid) {
  const auto vanishing = [](int i) { return std::pow(6.0, i - 9); };
  EXPECT_TRUE(warnings_of([&](std::uint64_t step) {  // at initialisation, and for a while later
                return step < 64 || (step > 100 && step < 118) ? Model(10, vanishing)
                                                               : Model(10, [](int) { return 1; });
              })
                  .empty());
}

TEST(DepthWatch, OtherProfilesAreNoMatterOfDepth) {
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 3);
  const std::function<double(int)> profiles[] = {
      [](int i) { return std::pow(2.0, i - 9); },          // a factor of 512
      [](int i) { return i < 5 ? 1e-6 : 1.0; },            // a jump
      [&](int) { return std::pow(10.0, noise(random)); },  // scatter
      [](int i) { return i < 5 ? std::pow(30.0, -i) : std::pow(30.0, i - 9); },
  };
  for (const auto& profile : profiles)
    EXPECT_TRUE(warnings_of([&](std::uint64_t) { return Model(10, profile); }).empty());
  EXPECT_TRUE(warnings_of([](std::uint64_t) {
                return Model(5, [](int i) { return std::pow(100.0, i); });
              }).empty());  // too few layers
}

}  // namespace
}  // namespace finitude::signal
