// How fast a scan is, against a plain read of the same memory. Not part of the build; from the root:
//   g++-12 -std=c++20 -O3 -DNDEBUG -Isrc bench/sense_bench.cpp
//     src/sense/{dtype,health,scan,scalar_kernels,kernels,fp8,strided_scan}.cpp
//     -lhwy -lbenchmark -lpthread -o /tmp/sense_bench
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "finitude/scan.h"

namespace {

using finitude::sense::DType;

// Ordinary values near 1 and -1 in every format that is measured here.
std::vector<std::uint32_t> ordinary(std::size_t bytes) {
  std::vector<std::uint32_t> words(bytes / 4 + 1);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = 0x38383838u ^ (static_cast<std::uint32_t>(i) * 2654435761u & 0x87038703u);
  }
  return words;
}

void finish(benchmark::State& state) { state.SetBytesProcessed(state.iterations() * state.range(0)); }

// GCC vector of 32 bytes; xor has no latency to speak of, so this is as fast as memory can be read.
__attribute__((target("avx2"))) void plain_read(benchmark::State& state) {
  using Vector = long long __attribute__((vector_size(32), aligned(1), may_alias));
  const auto words = ordinary(static_cast<std::size_t>(state.range(0)));
  const auto* from = reinterpret_cast<const Vector*>(words.data());
  const std::size_t vectors = static_cast<std::size_t>(state.range(0)) / 32;
  for (auto _ : state) {
    Vector a{}, b{}, c{}, d{};
    for (std::size_t i = 0; i + 4 <= vectors; i += 4) {
      a ^= from[i];
      b ^= from[i + 1];
      c ^= from[i + 2];
      d ^= from[i + 3];
    }
    Vector all = a ^ b ^ c ^ d;
    benchmark::DoNotOptimize(all);
  }
  finish(state);
}

void quick(benchmark::State& state, DType dtype) {
  const auto words = ordinary(static_cast<std::size_t>(state.range(0)));
  const std::size_t numel =
      static_cast<std::size_t>(state.range(0)) / finitude::sense::info(dtype).size_bytes;
  for (auto _ : state) benchmark::DoNotOptimize(finitude::sense::quick_scan(words.data(), numel, dtype));
  finish(state);
}

void full(benchmark::State& state, DType dtype) {
  const auto words = ordinary(static_cast<std::size_t>(state.range(0)));
  const std::size_t numel =
      static_cast<std::size_t>(state.range(0)) / finitude::sense::info(dtype).size_bytes;
  for (auto _ : state) benchmark::DoNotOptimize(finitude::sense::full_scan(words.data(), numel, dtype));
  finish(state);
}

// Every third word zero, as behind a ReLU.
void full_with_zeros(benchmark::State& state) {
  auto words = ordinary(static_cast<std::size_t>(state.range(0)));
  for (std::size_t i = 0; i < words.size(); i += 3) words[i] = 0;
  const std::size_t numel = static_cast<std::size_t>(state.range(0)) / 4;
  for (auto _ : state)
    benchmark::DoNotOptimize(finitude::sense::full_scan(words.data(), numel, DType::kFloat32));
  finish(state);
}

void full_all_nan(benchmark::State& state) {
  const std::vector<std::uint32_t> words(static_cast<std::size_t>(state.range(0)) / 4 + 1, 0x7fc00000u);
  const std::size_t numel = static_cast<std::size_t>(state.range(0)) / 4;
  for (auto _ : state)
    benchmark::DoNotOptimize(finitude::sense::full_scan(words.data(), numel, DType::kFloat32));
  finish(state);
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t bytes : {4, 20, 64, 128, 4 << 10, 64 << 10, 4 << 20, 64 << 20}) bench->Arg(bytes);
}

BENCHMARK(plain_read)->Apply(sizes);
BENCHMARK_CAPTURE(quick, float32, DType::kFloat32)->Apply(sizes);
BENCHMARK_CAPTURE(full, float32, DType::kFloat32)->Apply(sizes);
BENCHMARK(full_with_zeros)->Apply(sizes);
BENCHMARK(full_all_nan)->Apply(sizes);
BENCHMARK_CAPTURE(quick, bfloat16, DType::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(full, bfloat16, DType::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(full, float16, DType::kFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(quick, float64, DType::kFloat64)->Apply(sizes);
BENCHMARK_CAPTURE(full, float64, DType::kFloat64)->Apply(sizes);
BENCHMARK_CAPTURE(quick, float8_e5m2, DType::kFloat8E5M2)->Apply(sizes);
BENCHMARK_CAPTURE(full, float8_e5m2, DType::kFloat8E5M2)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
