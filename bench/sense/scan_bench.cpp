// Plain read, quick scan and full scan.
#include "sense/scan_bench.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <vector>

#include "sense/plain_read.h"
#include "sense/unsquared.h"
#include "sense/workload.h"

namespace finitude::bench {
namespace {

constexpr std::size_t kLarge = std::size_t{16} << 20;  // from here on it is memory bandwidth that counts

// By several threads, in pieces that whoever is free takes next, as the shared scan does it.
struct SharedRead {
  const std::uint8_t* data;
  std::size_t bytes, piece;
  PlainRead read;
  std::atomic<std::size_t> next{0};
};

void read_pieces(void* context) noexcept {
  auto& job = *static_cast<SharedRead*>(context);
  for (;;) {
    const std::size_t begin = job.next.fetch_add(1, std::memory_order_relaxed) * job.piece;
    if (begin >= job.bytes) return;
    benchmark::DoNotOptimize(job.read(job.data + begin, std::min(job.piece, job.bytes - begin)));
  }
}

void add_read(const ReadVariant& variant, int threads, std::size_t bytes) {
  const std::string name = std::string("plain_read:") + variant.name;
  const void* data = memory();
  add(name, sense::DType::kOther, threads, bytes, [=] { benchmark::DoNotOptimize(variant.read(data, bytes)); });
  if (threads == 1) return;
  add(name + "-shared", sense::DType::kOther, threads, bytes, [=] {
    SharedRead job{static_cast<const std::uint8_t*>(data), bytes, std::max(bytes / 64, std::size_t{64} << 10),
                   variant.read};
    lent_threads().run(read_pieces, &job);
  });
}

// A full scan without its sum of squares, by one thread or, as above, by several.
struct SharedUnsquared {
  const std::uint8_t* data;
  std::size_t numel, element_bytes, piece;
  sense::FullKernel kernel;
  std::atomic<std::size_t> next{0};
};

void scan_pieces(void* context) noexcept {
  auto& job = *static_cast<SharedUnsquared*>(context);
  sense::RawTotals totals;
  for (;;) {
    const std::size_t begin = job.next.fetch_add(1, std::memory_order_relaxed) * job.piece;
    if (begin >= job.numel) break;
    job.kernel(job.data + begin * job.element_bytes, std::min(job.piece, job.numel - begin), totals);
  }
  benchmark::DoNotOptimize(totals);
}

void add_unsquared(sense::DType dtype, int threads, std::size_t bytes) {
  const sense::FullKernel kernel = unsquared_kernel(dtype);
  if (kernel == nullptr || bytes < kLarge) return;
  const std::size_t size = sense::info(dtype).size_bytes, numel = bytes / size;
  const auto* data = static_cast<const std::uint8_t*>(memory());
  add("full_unsquared", dtype, threads, bytes, [=] {
    SharedUnsquared job{data, numel, size, threads == 1 ? numel : numel / 64, kernel};
    threads == 1 ? scan_pieces(&job) : lent_threads().run(scan_pieces, &job);
  });
}

// Tensors as small models have them: sizes in no order that a branch predictor could learn, one call for
// each.
struct SmallTensors {
  std::vector<std::size_t> at, numel;
  SmallTensors() {
    std::mt19937 random(1);
    for (int i = 0; i < 1024; ++i) {
      at.push_back(random() % 16384 * 4);
      numel.push_back(1 + random() % 64);
    }
  }
};

template <typename Scan>
void add_small(const std::string& name, Scan scan) {
  benchmark::RegisterBenchmark((name + "_small/float32/1/0").c_str(), [scan](benchmark::State& state) {
    const SmallTensors tensors;
    const auto* data = static_cast<const char*>(memory());
    for (auto _ : state) {
      for (std::size_t i = 0; i < tensors.at.size(); ++i) {
        benchmark::DoNotOptimize(scan(data + tensors.at[i], tensors.numel[i]));
      }
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(tensors.at.size()) * state.iterations());
  })->UseRealTime();
}

}  // namespace

void add_plain_reads() {
  for (const int threads : {1, 2}) {
    for (const std::size_t bytes : kSizes) {
      for (const ReadVariant& variant : read_variants()) add_read(variant, threads, bytes);
    }
  }
}

void add_scans() {
  const void* data = memory();
  for (const int threads : {1, 2}) {
    const sense::Threads lent = threads == 1 ? sense::Threads() : lent_threads();
    for (const sense::DType dtype : kDTypes) {
      for (const std::size_t bytes : kSizes) {
        const std::size_t numel = bytes / sense::info(dtype).size_bytes;
        add("quick", dtype, threads, bytes,
            [=] { benchmark::DoNotOptimize(sense::quick_scan(data, numel, dtype, lent)); });
        add("full", dtype, threads, bytes,
            [=] { benchmark::DoNotOptimize(sense::full_scan(data, numel, dtype, lent)); });
        add_unsquared(dtype, threads, bytes);
      }
    }
  }
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{20}, std::size_t{64}, std::size_t{256}}) {
    add("quick", sense::DType::kFloat32, 1, bytes,
        [=] { benchmark::DoNotOptimize(sense::quick_scan(data, bytes / 4, sense::DType::kFloat32)); });
    add("full", sense::DType::kFloat32, 1, bytes,
        [=] { benchmark::DoNotOptimize(sense::full_scan(data, bytes / 4, sense::DType::kFloat32)); });
  }
  add_small("quick",
            [](const void* data, std::size_t numel) { return sense::quick_scan(data, numel, sense::DType::kFloat32); });
  add_small("full",
            [](const void* data, std::size_t numel) { return sense::full_scan(data, numel, sense::DType::kFloat32); });
}

}  // namespace finitude::bench
