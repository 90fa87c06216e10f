// The C interface of cuda_scan.h, as its header promises it, on every machine and on a device, where it fails if there
// is none. What only a device shows is in scan_cuda_device_test.cpp.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "sense/scan_cuda_testing.h"

namespace finitude::sense {
namespace {

TEST_F(CudaScan, RandomListsAgreeWithTheReference) {
  for (int round = 0; round < 40; ++round) {
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<finitude_cuda_tensor> views;
    const std::size_t count = random_() % 50;
    for (std::size_t i = 0; i < count; ++i) {
      const DType dtype = kAllDTypes[random_() % std::size(kAllDTypes)];
      const std::size_t numel = random_() % 4 == 0 ? random_() % 200000 : random_() % 300;
      tensors.push_back(
          std::make_unique<Tensor>(dtype, numel, random_() % 16, static_cast<Mix>(random_() % 3), random_));
      views.push_back(tensors.back()->view());
    }
    set(views);
    const finitude_cuda_summary summary = scan();
    std::vector<finitude_cuda_health> rows(count), again(count);
    ASSERT_EQ(finitude_cuda_fetch(list_, ticket_, rows.data(), static_cast<std::uint32_t>(count)), FINITUDE_CUDA_OK);
    Health all;
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Health expected = tensors[i]->expected();
      ASSERT_EQ(rows[i].nan, expected.nan) << info(static_cast<DType>(views[i].dtype)).name << " x " << views[i].numel;
      ASSERT_EQ(rows[i].pos_inf, expected.pos_inf);
      ASSERT_EQ(rows[i].neg_inf, expected.neg_inf);
      ASSERT_EQ(order_key(rows[i].absmax), order_key(expected.absmax));
      if (std::isfinite(expected.sum_sq)) {
        ASSERT_NEAR(rows[i].sum_sq, expected.sum_sq, 1e-12 * expected.sum_sq);
      } else {
        ASSERT_EQ(rows[i].sum_sq, expected.sum_sq);
      }
      all = merge(all, expected);
      bad += !expected.ok();
    }
    EXPECT_EQ(summary.bad_tensors, bad);
    EXPECT_EQ(summary.nan, all.nan);
    EXPECT_EQ(summary.pos_inf, all.pos_inf);
    EXPECT_EQ(summary.neg_inf, all.neg_inf);
    EXPECT_EQ(order_key(summary.absmax), order_key(all.absmax));
    EXPECT_EQ(summary.skipped, 0u);
    EXPECT_EQ(summary.runs, 1u);
    EXPECT_TRUE(bad == 0 || !tensors[summary.first_bad]->expected().ok());
    // Run again: the same bits.
    const finitude_cuda_summary second = scan();
    ASSERT_EQ(finitude_cuda_fetch(list_, ticket_, again.data(), static_cast<std::uint32_t>(count)), FINITUDE_CUDA_OK);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(second.sum_sq), std::bit_cast<std::uint64_t>(summary.sum_sq));
    EXPECT_EQ(count == 0 ? 0 : std::memcmp(rows.data(), again.data(), count * sizeof rows[0]), 0);
  }
}

TEST_F(CudaScan, TheFlagOfTheOptimizer) {
  Tensor good(DType::kFloat32, 1000, 0, Mix::kFinite, random_), bad(DType::kFloat32, 1000, 1, Mix::kFinite, random_);
  auto* flag = static_cast<float*>(allocate(sizeof(float)));
  const auto written = [&](const finitude_cuda_options& options, float before) {
    to_device(flag, &before, sizeof before);
    const finitude_cuda_summary summary = scan(&options);
    EXPECT_EQ(summary.found_inf_before, before);
    float after = -1;
    from_device(&after, flag, sizeof after);
    return after;
  };
  finitude_cuda_options options{};
  options.found_inf = flag;
  set({good.view(), bad.view()});
  EXPECT_EQ(written(options, 1.0f), 0.0f) << "nothing is bad: the flag of the step before is taken back";
  bad.set(999, 0xff800000);
  EXPECT_EQ(written(options, 0.0f), 1.0f);
  options.keep_larger = 1;
  EXPECT_EQ(written(options, 0.0f), 1.0f);
  bad.set(999, 0);
  EXPECT_EQ(written(options, 1.0f), 1.0f) << "another's flag is not taken back";
  EXPECT_EQ(written(options, 0.0f), 0.0f);
  // The entry of its own says the same of the last scan.
  for (const bool is_bad : {true, false}) {
    bad.set(0, is_bad ? 0x7fc00000 : 0);
    scan();
    float after = 0.5f;
    to_device(flag, &after, sizeof after);
    ASSERT_EQ(finitude_cuda_found_inf(list_, nullptr, flag, 0, 0), FINITUDE_CUDA_OK);
    scan();
    from_device(&after, flag, sizeof after);
    EXPECT_EQ(after, is_bad ? 1.0f : 0.0f);
  }
  release(flag);
}

TEST_F(CudaScan, NotedValues) {
  Tensor loss(DType::kFloat32, 1, 0, Mix::kOrdinary, random_),
      gradient(DType::kBFloat16, 333, 0, Mix::kFinite, random_);
  auto* flag = static_cast<float*>(allocate(sizeof(float)));
  set({gradient.view()});
  finitude_cuda_options options{};
  options.found_inf = flag;
  options.count_noted = options.clear_noted = 1;
  const auto note = [&](std::uint64_t code) {
    loss.set(0, code);
    const finitude_cuda_tensor view = loss.view();
    std::uint64_t ticket = 0;
    finitude_cuda_summary summary{};
    EXPECT_EQ(finitude_cuda_scan_value(list_, nullptr, &view, &ticket), FINITUDE_CUDA_OK);
    EXPECT_EQ(finitude_cuda_wait(list_, ticket, &summary), FINITUDE_CUDA_OK);
    return summary;
  };
  const auto flag_after_scan = [&](std::uint32_t noted) {
    EXPECT_EQ(scan(&options).noted_bad, noted);
    float after = -1;
    from_device(&after, flag, sizeof after);
    return after;
  };
  EXPECT_EQ(note(0xc0200000).value, -2.5);
  EXPECT_EQ(flag_after_scan(0), 0.0f);
  EXPECT_EQ(note(0xff800000).value, -INFINITY);
  note(0x3f800000);  // a finite one after it takes nothing back
  EXPECT_EQ(flag_after_scan(1), 1.0f);
  EXPECT_EQ(flag_after_scan(0), 0.0f) << "noted values are forgotten after the scan that counted them";
  EXPECT_TRUE(std::isnan(note(0x7fc00001).value));
  options.count_noted = 0;
  EXPECT_EQ(flag_after_scan(1), 0.0f);
  // Scans that forget nothing, then the entry of its own, which does, whether it writes or not.
  const auto flag_after_both = [&](float* found_inf) {
    scan();
    scan();
    float after = 0.5f;
    to_device(flag, &after, sizeof after);
    EXPECT_EQ(finitude_cuda_found_inf(list_, nullptr, found_inf, 0, 1), FINITUDE_CUDA_OK);
    EXPECT_EQ(scan().noted_bad, 0u);
    from_device(&after, flag, sizeof after);
    return after;
  };
  note(0x7fc00001);
  EXPECT_EQ(flag_after_both(flag), 1.0f);
  EXPECT_EQ(flag_after_both(flag), 0.0f);
  note(0x7fc00001);
  EXPECT_EQ(flag_after_both(nullptr), 0.5f);
  release(flag);
}

TEST_F(CudaScan, AFiniteNormSparesTheRead) {
  Tensor norm(DType::kFloat64, 1, 0, Mix::kOrdinary, random_), gradient(DType::kFloat16, 70000, 1, Mix::kAll, random_);
  set({gradient.view()});
  finitude_cuda_options options{};
  options.unless_finite = norm.view();
  norm.set(0, std::bit_cast<std::uint64_t>(-3.25));
  finitude_cuda_summary summary = scan(&options);
  EXPECT_EQ(summary.skipped, 1u);
  EXPECT_EQ(summary.bad_tensors, 0u);
  EXPECT_EQ(summary.absmax, 3.25);
  finitude_cuda_health row{1, 1, 1, 1, 1};
  EXPECT_EQ(finitude_cuda_fetch(list_, ticket_, &row, 1), FINITUDE_CUDA_OK);
  EXPECT_EQ(row.nan + row.pos_inf + row.neg_inf, 0u);
  for (const std::uint64_t code : {0x7ff0000000000000u, 0xfff0000000000000u, 0x7ff8000000000001u}) {
    norm.set(0, code);
    summary = scan(&options);
    EXPECT_EQ(summary.skipped, 0u);
    EXPECT_EQ(summary.bad_tensors, 1u);
    EXPECT_EQ(summary.nan, gradient.expected().nan);
  }
}

TEST_F(CudaScan, OldResultsAreLostNotWrong) {
  Tensor gradient(DType::kFloat32, 10, 0, Mix::kFinite, random_);
  set({gradient.view()});
  gradient.set(3, 0x7f800000);
  scan();
  const std::uint64_t first = ticket_;
  gradient.set(3, 0);
  finitude_cuda_health row{};
  for (std::uint32_t i = 1; i < FINITUDE_CUDA_ROWS; ++i) scan();
  ASSERT_EQ(finitude_cuda_fetch(list_, first, &row, 1), FINITUDE_CUDA_OK);
  EXPECT_EQ(row.pos_inf, 1u);
  scan();
  EXPECT_EQ(finitude_cuda_fetch(list_, first, &row, 1), FINITUDE_CUDA_LOST);
  finitude_cuda_summary summary{};
  ASSERT_EQ(finitude_cuda_poll(list_, first, &summary), FINITUDE_CUDA_OK);
  EXPECT_EQ(summary.bad_tensors, 1u);
  for (std::uint32_t i = 0; i < FINITUDE_CUDA_RING; ++i) scan();
  EXPECT_EQ(finitude_cuda_poll(list_, first, &summary), FINITUDE_CUDA_LOST);
  EXPECT_EQ(finitude_cuda_poll(list_, ticket_ + 1, &summary), FINITUDE_CUDA_LOST) << "never given out";
}

TEST_F(CudaScan, ResultsReadAheadAreInTheScan) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<finitude_cuda_tensor> whole, mixed;
    const auto count = static_cast<std::uint32_t>(1 + random_() % 150);
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const DType dtype = kAllDTypes[random_() % std::size(kAllDTypes)];
      const std::size_t numel = 1 + (random_() % 8 == 0 ? random_() % 200000 : random_() % 300);
      tensors.push_back(
          std::make_unique<Tensor>(dtype, numel, random_() % 16, static_cast<Mix>(random_() % 3), random_));
      whole.push_back(tensors.back()->view());
      bytes += numel * element_size(dtype);
    }
    set(whole);
    const finitude_cuda_summary expected = scan();
    std::vector<finitude_cuda_health> rows(count), again(count);
    ASSERT_EQ(finitude_cuda_fetch(list_, ticket_, rows.data(), count), FINITUDE_CUDA_OK);
    ASSERT_EQ(finitude_cuda_reserve(list_, count, bytes), FINITUDE_CUDA_OK) << finitude_cuda_why(list_);
    std::vector<finitude_cuda_tensor> call;
    mixed = whole;
    const auto send = [&] {
      if (call.empty()) return;
      ASSERT_EQ(finitude_cuda_ahead(list_, call.data(), static_cast<std::uint32_t>(call.size()), nullptr),
                FINITUDE_CUDA_OK);
      call.clear();
    };
    for (std::uint32_t i = 0; i < count; ++i) {
      if (random_() % 3 == 0) continue;
      call.push_back(whole[i]);
      call.back().ahead = i + 1;
      mixed[i] = {nullptr, 0, 0, i + 1};  // what is read ahead is not looked at again
      if (call.size() == FINITUDE_CUDA_AHEAD || random_() % 20 == 0) send();
    }
    send();
    ASSERT_EQ(finitude_cuda_join(list_, nullptr), FINITUDE_CUDA_OK);
    set(mixed);
    const finitude_cuda_summary summary = scan();
    EXPECT_EQ(finitude_cuda_passed(list_), FINITUDE_CUDA_OK);
    ASSERT_EQ(finitude_cuda_fetch(list_, ticket_, again.data(), count), FINITUDE_CUDA_OK);
    EXPECT_EQ(std::memcmp(rows.data(), again.data(), count * sizeof rows[0]), 0) << "equal inputs, equal bits";
    EXPECT_EQ(summary.bad_tensors, expected.bad_tensors);
    EXPECT_TRUE(summary.bad_tensors == 0 || summary.first_bad == expected.first_bad);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(summary.sum_sq), std::bit_cast<std::uint64_t>(expected.sum_sq));
    EXPECT_EQ(order_key(summary.absmax), order_key(expected.absmax));
  }
}

TEST_F(CudaScan, RefusesToReadAheadWithoutRoom) {
  Tensor gradient(DType::kFloat32, 1 << 20, 0, Mix::kFinite, random_);
  finitude_cuda_tensor call = gradient.view();
  call.ahead = 1;
  EXPECT_EQ(finitude_cuda_ahead(list_, &call, 1, nullptr), FINITUDE_CUDA_INVALID) << "nothing is reserved";
  EXPECT_EQ(finitude_cuda_join(list_, nullptr), FINITUDE_CUDA_OK);
  const finitude_cuda_tensor never = {nullptr, 0, 0, 500};
  set({never});
  EXPECT_EQ(finitude_cuda_scan(list_, nullptr, nullptr, &ticket_), FINITUDE_CUDA_INVALID);
  ASSERT_EQ(finitude_cuda_reserve(list_, 1, 4 << 20), FINITUDE_CUDA_OK);
  EXPECT_EQ(finitude_cuda_ahead(list_, &call, 1, nullptr), FINITUDE_CUDA_OK);
  EXPECT_EQ(finitude_cuda_ahead(list_, &call, 0, nullptr), FINITUDE_CUDA_INVALID);
  call.ahead = 0;
  EXPECT_EQ(finitude_cuda_ahead(list_, &call, 1, nullptr), FINITUDE_CUDA_INVALID) << "no slot";
  call.ahead = 5000;
  EXPECT_EQ(finitude_cuda_ahead(list_, &call, 1, nullptr), FINITUDE_CUDA_INVALID) << "no such slot";
}

TEST_F(CudaScan, RefusesWhatItCannotScan) {
  finitude_cuda_tensor tensor{nullptr, 4, static_cast<std::uint32_t>(DType::kFloat32), 0};
  EXPECT_EQ(finitude_cuda_set(list_, &tensor, 1, nullptr), FINITUDE_CUDA_INVALID);
  EXPECT_EQ(finitude_cuda_set(nullptr, &tensor, 1, nullptr), FINITUDE_CUDA_INVALID);
  EXPECT_EQ(finitude_cuda_set(list_, nullptr, 1, nullptr), FINITUDE_CUDA_INVALID);
  EXPECT_EQ(finitude_cuda_scan(list_, nullptr, nullptr, nullptr), FINITUDE_CUDA_INVALID);
  EXPECT_EQ(finitude_cuda_poll(list_, 1, nullptr), FINITUDE_CUDA_INVALID);
  EXPECT_EQ(finitude_cuda_query(nullptr), FINITUDE_CUDA_INVALID);
  EXPECT_EQ(finitude_cuda_query(list_), FINITUDE_CUDA_OK) << "nothing is under way";
  EXPECT_EQ(finitude_cuda_open(-1, &list_), FINITUDE_CUDA_INVALID);
  finitude_cuda_close(nullptr);
  EXPECT_EQ(scan().bad_tensors, 0u) << "an empty list is healthy";
}

}  // namespace
}  // namespace finitude::sense
