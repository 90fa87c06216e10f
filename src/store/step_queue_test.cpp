#include "store/step_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace finitude::store {
namespace {

TEST(StoreQueue, RowsComeOutAsTheyWentIn) {
  StepQueue queue(1024);
  StepRow out;
  StepMemory memory;
  std::vector<float> given;
  for (std::uint64_t step = 0; step < 1000; ++step) {  // many times around
    given.assign(step % 7, static_cast<float>(step));
    const std::vector<float> weights(step % 4, -static_cast<float>(step));
    const std::vector<float> norms(step % 3 == 0 ? given.size() : 0, 2.0f * static_cast<float>(step));
    const std::vector<float> parts(step % 5 == 0 ? kParts * weights.size() : 0, 7.0f);
    const std::vector<double> rates(step % kMostGroups, 0.125);
    StepRow in{step, 3, step * 2, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, given, weights, norms};
    in.parts = parts;
    in.more_rates = rates;
    in.loss_max = 9.0;
    ASSERT_TRUE(queue.push(in));
    ASSERT_TRUE(queue.pop(&out, &memory));
    EXPECT_EQ(out.step, step);
    EXPECT_EQ(out.optimizer, 3u);
    EXPECT_EQ(out.time_ns, step * 2);
    EXPECT_EQ(out.loss, 1.5);
    EXPECT_EQ(out.gradient_norm, 2.5);
    EXPECT_EQ(out.gradient_absmax, 3.5);
    EXPECT_EQ(out.learning_rate, 4.5);
    EXPECT_EQ(out.loss_scale, 5.5);
    EXPECT_EQ(out.logits_absmax, 6.5);
    EXPECT_EQ(out.attention_absmax, 7.5);
    EXPECT_EQ(std::vector<float>(out.gradients.begin(), out.gradients.end()), given);
    EXPECT_EQ(std::vector<float>(out.weights.begin(), out.weights.end()), weights);
    EXPECT_EQ(std::vector<float>(out.norms.begin(), out.norms.end()), norms);
    EXPECT_TRUE(std::ranges::equal(out.parts, parts));
    EXPECT_TRUE(std::ranges::equal(out.more_rates, rates));
    EXPECT_EQ(out.loss_max, 9.0);
    EXPECT_FALSE(queue.pop(&out, &memory));
  }
}

TEST(StoreQueue, RowsOfBatchesComeOutToo) {
  StepQueue queue(1024);
  StepRow out, in;
  StepMemory memory;
  for (std::size_t size = 0; size < 300; ++size) {  // many times around
    const std::vector<std::byte> bytes(size, static_cast<std::byte>(size));
    const std::vector<float> gradients(size % 5, 1.0f);
    in.gradients = gradients;
    in.batches = bytes;
    in.is_applied = size % 2 != 0;
    in.event = static_cast<StepEvent>(size % 4);
    in.optimizer = 7;
    ASSERT_TRUE(queue.push(in));
    ASSERT_TRUE(queue.pop(&out, &memory));
    EXPECT_TRUE(std::ranges::equal(out.batches, bytes));
    EXPECT_EQ(out.gradients.size(), gradients.size());
    EXPECT_EQ(out.is_applied, in.is_applied);
    EXPECT_EQ(out.event, in.event);
    EXPECT_EQ(out.optimizer, 7u);
  }
}

TEST(StoreQueue, FullQueueDropsRowsAndCountsThem) {
  StepQueue queue(512);
  int pushed = 0;
  while (queue.push({})) ++pushed;
  EXPECT_EQ(pushed, 512 / 8 / 15);
  EXPECT_FALSE(queue.push({}));
  EXPECT_EQ(queue.left_out(), 2u);
  StepRow out;
  StepMemory memory;
  ASSERT_TRUE(queue.pop(&out, &memory));
  EXPECT_TRUE(queue.push({}));
}

TEST(StoreQueue, TwoThreadsShareIt) {
  StepQueue queue(1024);
  constexpr std::uint64_t kRows = 5'000;
  std::thread writer([&] {
    for (std::uint64_t step = 0; step < kRows;) {
      const std::vector<float> values(step % 5, static_cast<float>(step % 1000));
      StepRow row;
      row.step = step;
      row.gradients = values;
      if (queue.push(row))
        ++step;
      else
        std::this_thread::yield();
    }
  });
  StepRow out;
  StepMemory memory;
  for (std::uint64_t step = 0; step < kRows;) {
    if (!queue.pop(&out, &memory)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(out.step, step);
    ASSERT_EQ(out.gradients.size(), step % 5);
    for (const float value : out.gradients) ASSERT_EQ(value, static_cast<float>(step % 1000));
    ++step;
  }
  writer.join();
}

}  // namespace
}  // namespace finitude::store
