// The index arithmetic of the CUDA kernels, run on the host over random lists of tensors and compared with the
// reference.
#include <algorithm>
#include <bit>
#include <numeric>

#include "sense/multi_scan_host.h"
#include "sense/scan_test_util.h"

namespace finitude::sense::multi {
namespace {

// Elements of a dtype at any place that is aligned to a real element.
struct Sample {
  std::vector<unsigned char> bytes;
  std::size_t offset = 0, numel = 0;
  DType dtype = DType::kOther;

  const unsigned char* data() const { return bytes.data() + offset; }
  finitude_cuda_tensor tensor() const { return {data(), numel, static_cast<std::uint32_t>(dtype), 0}; }
  Health expected() const { return reference_scan(data(), numel, dtype); }
};

Sample sample(DType dtype, std::size_t numel, std::size_t shift, Mix mix, std::mt19937_64& random) {
  Sample s;
  s.dtype = dtype;
  s.numel = numel;
  const std::size_t real = std::max<std::size_t>(1, info(dtype).size_bytes);
  s.bytes.resize(element_size(dtype) * numel + 64);
  const auto base = reinterpret_cast<std::uintptr_t>(s.bytes.data());
  s.offset = (16 - base % 16) % 16 + shift * real % 32;
  fill(s.bytes.data() + s.offset, numel * static_cast<std::size_t>(info(dtype).reals_per_element), bit_format(dtype),
       mix, random);
  return s;
}

::testing::AssertionResult same(const finitude_cuda_health& actual, const Health& expected) {
  Health h = expected;  // what a scan on a device does not count
  h.nan = actual.nan;
  h.pos_inf = actual.pos_inf;
  h.neg_inf = actual.neg_inf;
  h.absmax = actual.absmax;
  h.sum_sq = actual.sum_sq;
  return sense::same(h, expected);
}

TEST(MultiScan, EveryByteIsReadOnceWhateverTheAlignment) {
  for (std::uint64_t shift = 0; shift < 16; ++shift) {
    for (const std::uint64_t bytes : {1, 7, 15, 16, 17, 31, 32, 33, 1000, 65519, 65536, 65537, 131072, 200001}) {
      Item item{};
      item.address = 0x7f0000001000 + shift;
      item.bytes = bytes;
      item.chunks = static_cast<std::uint32_t>(chunks_of(item.address, bytes));
      ASSERT_GE(item.chunks, 1u);
      std::uint64_t at = item.address;
      for (std::uint32_t c = 0; c < item.chunks; ++c) {
        const Split s = split_of(item, c);
        ASSERT_EQ(s.begin, at);
        ASSERT_LE(s.begin, s.body);
        ASSERT_LE(s.body, s.tail);
        ASSERT_LE(s.tail, s.end);
        ASSERT_LT(s.begin, s.end) << "an empty chunk";
        ASSERT_LT(s.body - s.begin, kVectorBytes);
        ASSERT_LT(s.end - s.tail, kVectorBytes);
        if (s.tail != s.body) {
          ASSERT_EQ(s.body % kVectorBytes, 0u);
          ASSERT_EQ((s.tail - s.body) % kVectorBytes, 0u);
        }
        at = s.end;
      }
      ASSERT_EQ(at, item.address + bytes);
    }
  }
}

TEST(MultiScan, EveryCodeOfEveryFormatMatchesTheReference) {
  std::mt19937_64 random(1);
  for (const DType dtype : kAllDTypes) {
    const std::uint32_t format = format_of(dtype);
    const BitFormat layout = layout_of(format);
    for (std::uint64_t n = 0; n < 65536; ++n) {
      std::uint64_t code = n;
      if (layout.bits > 16) code = n < 40000 ? random() : (n << (layout.bits - 16)) | (random() & 3);
      if (layout.bits == 8 && n > 255) break;
      if (layout.bits < 64) code &= (std::uint64_t{1} << layout.bits) - 1;
      const Kind kind = classify(code, layout);
      const bool finite = kind == Kind::kZero || kind == Kind::kSubnormal || kind == Kind::kNormal;
      ASSERT_EQ(is_finite_code(code, format), finite);
      const double value = value_any(code, format);
      if (finite) {
        ASSERT_EQ(order_key(value), order_key(decode(code, layout))) << info(dtype).name << " code " << code;
      } else {
        ASSERT_EQ(value != value, kind == Kind::kNan);
        ASSERT_EQ(std::signbit(value), kind == Kind::kNegInf);
      }
    }
  }
}

// Each code alone among finite ones, in each lane of a vector: the fast question must notice exactly the bad ones.
TEST(MultiScan, OneBadLaneIsNoticedInEveryPlace) {
  for (const DType dtype : kAllDTypes) {
    const BitFormat layout = bit_format(dtype);
    const std::size_t per_group = kUnroll * kVectorBytes * 8 / static_cast<std::size_t>(layout.bits);
    auto codes = bad_codes(layout);
    for (const std::uint64_t code : finite_codes(layout)) codes.push_back(code);
    for (const std::uint64_t code : codes) {
      for (std::size_t lane = 0; lane < per_group; ++lane) {
        alignas(16) unsigned char bytes[kUnroll * kVectorBytes] = {};
        put(bytes, lane, code, layout);
        Item item;
        ASSERT_TRUE(
            make_item({bytes, sizeof bytes / element_size(dtype), static_cast<std::uint32_t>(dtype), 0}, &item));
        ASSERT_TRUE(same(health_of(run_value(item)), reference_scan(bytes, sizeof bytes / element_size(dtype), dtype)))
            << info(dtype).name << " code " << code << " lane " << lane;
      }
    }
  }
}

TEST(MultiScan, ListsMatchReferenceInAnyBlockOrder) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 60; ++round) {
    std::vector<Sample> samples;
    const std::size_t count = random() % 40;
    for (std::size_t i = 0; i < count; ++i) {
      const DType dtype = kAllDTypes[random() % std::size(kAllDTypes)];
      const std::size_t scale = random() % 5;
      const std::size_t numel = scale == 0 ? random() % 3 : scale == 1 ? random() % 70000 : random() % 600;
      samples.push_back(sample(dtype, numel, random() % 16, static_cast<Mix>(random() % 3), random));
    }
    std::vector<finitude_cuda_tensor> tensors;
    for (const Sample& s : samples) tensors.push_back(s.tensor());
    Plan plan;
    ASSERT_NE(plan.update(tensors.data(), static_cast<std::uint32_t>(count)), Plan::Change::kInvalid);

    HostMemory memory;
    std::vector<finitude_cuda_health> rows(count), again(count);
    Roll roll, second;
    ASSERT_EQ(run_scan(plan, memory, rows.data(), &roll), 1) << "exactly one block is the last";
    std::vector<std::uint32_t> order(plan.chunks());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    // The same memory once more: the counters have to be back at zero.
    ASSERT_EQ(run_scan(plan, memory, again.data(), &second, order), 1);

    std::uint32_t bad = 0, first_bad = kNone;
    Health all;
    for (std::size_t i = 0; i < count; ++i) {
      const Health expected = samples[i].expected();
      ASSERT_TRUE(same(rows[i], expected)) << info(samples[i].dtype).name << " x " << samples[i].numel;
      ASSERT_EQ(std::bit_cast<std::uint64_t>(rows[i].sum_sq), std::bit_cast<std::uint64_t>(again[i].sum_sq));
      all = merge(all, expected);
      if (!expected.ok()) {
        ++bad;
        first_bad = std::min(first_bad, static_cast<std::uint32_t>(i));
      }
    }
    EXPECT_EQ(roll.bad, bad);
    EXPECT_EQ(roll.first_bad, first_bad);
    EXPECT_TRUE(same(health_of(roll.tally), all));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(roll.tally.sum_sq), std::bit_cast<std::uint64_t>(second.tally.sum_sq));
    EXPECT_EQ(second.bad, bad);
    EXPECT_EQ(second.first_bad, first_bad);
  }
}

// One tensor of more chunks than a block has threads, with one bad element near its end.
TEST(MultiScan, ATensorOfManyChunks) {
  std::mt19937_64 random(3);
  Sample s = sample(DType::kFloat8E5M2, (kThreads + 44) * std::size_t{kChunkBytes} + 5, 3, Mix::kOrdinary, random);
  s.bytes[s.offset + s.numel - 1] = 0x7c;  // +Inf
  const finitude_cuda_tensor tensor = s.tensor();
  Plan plan;
  plan.update(&tensor, 1);
  ASSERT_EQ(plan.chunks(), kThreads + 45);
  HostMemory memory;
  finitude_cuda_health row{};
  Roll roll;
  ASSERT_EQ(run_scan(plan, memory, &row, &roll), 1);
  EXPECT_TRUE(same(row, s.expected()));
  EXPECT_EQ(roll.bad, 1u);
  EXPECT_EQ(row.pos_inf, 1u);
}

// The reads stay inside the tensor: its neighbours are pages nobody may touch.
TEST(MultiScan, AheadBlocksFindTensorsEachWrittenOnce) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto count = static_cast<std::uint32_t>(1 + random() % FINITUDE_CUDA_AHEAD);
    std::vector<Sample> samples;
    std::vector<finitude_cuda_tensor> tensors;
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t numel = 1 + (random() % 20 == 0 ? random() % 100000 : random() % 50);
      samples.push_back(sample(kAllDTypes[random() % std::size(kAllDTypes)], numel, random() % 16,
                               static_cast<Mix>(random() % 3), random));
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      tensors.push_back(samples[i].tensor());
      tensors.back().ahead = 1 + i * 3;
      bytes += samples[i].numel * element_size(samples[i].dtype);
    }
    std::vector<Item> items(FINITUDE_CUDA_AHEAD);
    const std::uint64_t chunks = make_ahead(tensors.data(), count, items.data());
    ASSERT_GE(chunks, count);
    ASSERT_LE(chunks, chunks_ahead(bytes)) << "more than there is room for";
    std::vector<std::uint32_t> order(chunks);
    std::iota(order.begin(), order.end(), 0u);
    for (const std::uint32_t block : order) {
      const Item& item = items[owner_of(items.data(), count, block)];
      ASSERT_TRUE(block >= item.first_chunk && block < item.first_chunk + item.chunks);
    }
    std::shuffle(order.begin(), order.end(), random);
    HostMemory memory;
    std::vector<finitude_cuda_health> rows(3 * count);
    ASSERT_EQ(run_ahead(items.data(), count, static_cast<std::uint32_t>(chunks), memory, rows.data(), order), count);
    for (std::uint32_t i = 0; i < count; ++i) ASSERT_TRUE(same(rows[3 * i], samples[i].expected()));
    for (const std::uint32_t left : memory.arrivals) ASSERT_EQ(left, 0u) << "not ready for the next launch";
  }
}

TEST(MultiScan, ReadsNothingBesides) {
  for (const DType dtype : kAllDTypes) {
    FencedMemory memory(8192);
    for (std::size_t numel = 1; numel < 40; ++numel) {
      for (unsigned char* at : {memory.begin(), memory.end() - numel * element_size(dtype)}) {
        Item item;
        ASSERT_TRUE(make_item({at, numel, static_cast<std::uint32_t>(dtype), 0}, &item));
        EXPECT_FALSE(is_bad(run_value(item)));
      }
    }
  }
}

TEST(MultiScan, TablesAreReusedWhileNothingChanges) {
  alignas(16) static unsigned char memory[400000];
  const auto f32 = static_cast<std::uint32_t>(DType::kFloat32);
  std::vector<finitude_cuda_tensor> tensors = {
      {memory, 5, f32, 0}, {memory + 64, 50000, f32, 0}, {memory + 16, 0, f32, 0}};
  Plan plan;
  EXPECT_EQ(plan.update(tensors.data(), 3), Plan::Change::kAll);
  EXPECT_EQ(plan.update(tensors.data(), 3), Plan::Change::kNone);
  EXPECT_EQ(plan.filled(), 2u);
  tensors[0].data = memory + 32;
  EXPECT_EQ(plan.update(tensors.data(), 3), Plan::Change::kItems);
  EXPECT_EQ(plan.items()[0].address, reinterpret_cast<std::uintptr_t>(memory + 32));
  tensors[0].numel = 40000;  // one chunk becomes three
  EXPECT_EQ(plan.update(tensors.data(), 3), Plan::Change::kAll);
  const auto owners = plan.owners();
  EXPECT_EQ(std::count(owners.begin(), owners.end(), 0u), 3);
  EXPECT_EQ(plan.update(tensors.data(), 2), Plan::Change::kAll);
  for (std::uint32_t i = 0; i < plan.tensors(); ++i) {
    for (std::uint32_t c = 0; c < plan.items()[i].chunks; ++c)
      EXPECT_EQ(plan.owners()[plan.items()[i].first_chunk + c], i);
  }
  tensors[1].data = memory + 66;  // not aligned to float32
  EXPECT_EQ(plan.update(tensors.data(), 2), Plan::Change::kInvalid);
  tensors[1] = {memory, 3, 77, 0};
  EXPECT_EQ(plan.update(tensors.data(), 2), Plan::Change::kInvalid);
  tensors[1] = {nullptr, 3, f32, 0};
  EXPECT_EQ(plan.update(tensors.data(), 2), Plan::Change::kInvalid);
  tensors[1] = {nullptr, 3, static_cast<std::uint32_t>(DType::kOther), 0};
  EXPECT_EQ(plan.update(tensors.data(), 2), Plan::Change::kAll);
  EXPECT_EQ(plan.filled(), 1u);
}

// Sizes that fit into 64 bits and not into the counters of a launch are refused, not cut off.
TEST(MultiScan, SizesBeyondALaunchAreRefused) {
  const auto f8 = static_cast<std::uint32_t>(DType::kFloat8E5M2), c128 = static_cast<std::uint32_t>(DType::kComplex128);
  const auto* at = reinterpret_cast<const void*>(std::uintptr_t{0x7f0000001000});
  const std::uint64_t most = std::uint64_t{kChunkBytes} << 30;
  Item item;
  for (const std::uint64_t numel : {std::uint64_t{1} << 31, (std::uint64_t{1} << 32) + 5, most - kChunkBytes}) {
    ASSERT_TRUE(make_item({at, numel, f8, 0}, &item));
    const Split last = split_of(item, item.chunks - 1);
    EXPECT_EQ(last.end, item.address + numel);
    EXPECT_LT(last.begin, last.end);
    EXPECT_LE(last.end - last.begin, std::uint64_t{kChunkBytes});
  }
  for (const std::uint64_t numel : {most, std::uint64_t{1} << 48, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    EXPECT_FALSE(make_item({at, numel, f8, 0}, &item));
    EXPECT_FALSE(make_item({at, numel, c128, 0}, &item));
  }
}

TEST(MultiScan, TicketsKnowWhatIsStillThere) {
  Tickets tickets;
  EXPECT_EQ(tickets.slot_of(0), kNone);
  EXPECT_EQ(tickets.slot_of(1), kNone);
  std::vector<Tickets::Place> given;
  for (std::uint32_t i = 0; i < FINITUDE_CUDA_ROWS; ++i) {
    given.push_back(tickets.next(true, false));
    tickets.next(false, false);  // a value takes a slot but no row
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(tickets.row_of(given[i].ticket), given[i].row);
    EXPECT_EQ(tickets.row_of(given[i].ticket + 1), kNone);
    for (std::size_t k = 0; k < i; ++k) EXPECT_NE(given[i].row, given[k].row);
  }
  const Tickets::Place graph = tickets.next(true, true);
  EXPECT_EQ(graph.row, FINITUDE_CUDA_ROWS);
  EXPECT_GE(graph.slot, FINITUDE_CUDA_RING);
  EXPECT_EQ(tickets.slot_of(graph.ticket), graph.slot);
  tickets.next(true, false);
  EXPECT_EQ(tickets.row_of(given[0].ticket), kNone) << "its row was taken again";
  EXPECT_EQ(tickets.row_of(given[1].ticket), given[1].row);
  EXPECT_NE(tickets.slot_of(given[0].ticket), kNone) << "its summary is still there";
  for (std::uint32_t i = 0; i < FINITUDE_CUDA_RING; ++i) tickets.next(false, false);
  EXPECT_EQ(tickets.slot_of(given[0].ticket), kNone);
  for (std::uint32_t i = 1; i < FINITUDE_CUDA_CAPTURED; ++i) EXPECT_NE(tickets.next(true, true).ticket, 0u);
  EXPECT_EQ(tickets.next(true, true).ticket, 0u) << "no slot is left for a further graph";
  EXPECT_EQ(tickets.slot_of(graph.ticket), graph.slot);
}

TEST(MultiScan, TheFlagIsOneOrWhatWasLarger) {
  EXPECT_EQ(found_inf_after(0, false, false), 0.0f);
  EXPECT_EQ(found_inf_after(1, false, false), 0.0f);
  EXPECT_EQ(found_inf_after(0, true, false), 1.0f);
  EXPECT_EQ(found_inf_after(0, true, true), 1.0f);
  EXPECT_EQ(found_inf_after(1, false, true), 1.0f);
  EXPECT_EQ(found_inf_after(2, true, true), 2.0f);
}

}  // namespace
}  // namespace finitude::sense::multi
