#include "capture/generators.h"

#include <gtest/gtest.h>

namespace finitude::capture {
namespace {

Generators sample() {
  Generators g;
  g.torch.emplace();
  g.torch->seed = 0x0123456789abcdef;
  g.torch->left = 3;
  g.torch->next = 622;
  g.torch->seeded = true;
  g.torch->next_double = -0.5;
  g.torch->words.fill(0xfedcba98);
  g.numpy.emplace();
  g.numpy->position = 624;
  g.numpy->words[623] = 7;
  g.own.resize(2);
  g.own[1] = g.torch;
  g.own[1]->next_float = 0.25f;
  return g;
}

TEST(Generators, ComeBackAsTheyWere) {
  const std::string bytes = write_generators(sample());
  Generators read;
  ASSERT_TRUE(read_generators(bytes, &read));
  EXPECT_EQ(write_generators(read), bytes);
  EXPECT_EQ(read.torch->seed, 0x0123456789abcdefu);
  EXPECT_EQ(read.torch->words[100], 0xfedcba98u);
  EXPECT_FALSE(read.python.has_value());
  EXPECT_EQ(read.numpy->words[623], 7u);
  EXPECT_EQ(*read.own[1]->next_float, 0.25f);
  EXPECT_FALSE(read.own[0].has_value());
}

Generators of_gpus() {
  Generators g = sample();
  g.devices = {{"cuda:0", true, 67280421310721u, 4096}, {"cuda:1", false, 0, 0}};
  return g;
}

TEST(Generators, ThoseOfGpusComeBack) {
  const std::string bytes = write_generators(of_gpus());
  Generators read;
  ASSERT_TRUE(read_generators(bytes, &read));
  EXPECT_EQ(write_generators(read), bytes);
  ASSERT_EQ(read.devices.size(), 2u);
  EXPECT_EQ(read.devices[0].device, "cuda:0");
  EXPECT_EQ(read.devices[0].seed, 67280421310721u);
  EXPECT_EQ(read.devices[0].offset, 4096u);
  EXPECT_FALSE(read.devices[1].known);
  EXPECT_EQ(bytes[0], 2);
  EXPECT_EQ(write_generators(sample())[0], 1) << "programs of before read it";
  for (std::size_t n = 0; n < bytes.size(); n += 13) EXPECT_FALSE(read_generators(bytes.substr(0, n), &read));
  Generators bad = of_gpus();
  bad.devices[0].offset = 4097;
  EXPECT_FALSE(read_generators(write_generators(bad), &read));
  bad = of_gpus();
  bad.devices[1].device = "\n";
  EXPECT_FALSE(read_generators(write_generators(bad), &read));
}

TEST(Generators, WhatIsCutOffOrLongerIsRefused) {
  const std::string bytes = write_generators(sample());
  Generators read;
  for (std::size_t n = 0; n < bytes.size(); n += 97) EXPECT_FALSE(read_generators(bytes.substr(0, n), &read));
  EXPECT_FALSE(read_generators(bytes + "x", &read));
}

// Positions are used as indices by those that take the states over.
TEST(Generators, PositionsOutsideAreRefused) {
  Generators bad = sample(), read;
  bad.numpy->position = 625;
  EXPECT_FALSE(read_generators(write_generators(bad), &read));
  bad = sample();
  bad.torch->left = 0;
  EXPECT_FALSE(read_generators(write_generators(bad), &read));
  bad.torch->left = 4;  // 4 + 622 is one more than there are
  EXPECT_FALSE(read_generators(write_generators(bad), &read));
}

}  // namespace
}  // namespace finitude::capture
