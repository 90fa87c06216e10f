// What every benchmark of this folder shares: the memory, the threads, the grid and the names.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "finitude/scan.h"

namespace finitude::bench {

inline constexpr std::size_t kSizes[] = {std::size_t{4} << 10,  std::size_t{64} << 10, std::size_t{512} << 10,
                                         std::size_t{1} << 20,  std::size_t{4} << 20,  std::size_t{16} << 20,
                                         std::size_t{64} << 20, std::size_t{256} << 20};
inline constexpr sense::DType kDTypes[] = {sense::DType::kFloat32, sense::DType::kBFloat16, sense::DType::kFloat16,
                                           sense::DType::kFloat64};

// The same memory for everything, so that no contender is lucky with its pages: ordinary values, of magnitude
// about 1 in float32 and float64 and finite and normal in each format of kDTypes. Writable because torch's
// check writes.
void* memory();

// OpenMP threads, as torch has them, for whatever runs next.
void use_threads(int count);
sense::Threads lent_threads();

std::string name_of(const std::string& what, sense::DType dtype, int threads, std::size_t bytes);

// Registers WHAT/DTYPE/THREADS/BYTES; once() is what is timed, by the wall clock.
template <typename Once>
void add(const std::string& what, sense::DType dtype, int threads, std::size_t bytes, Once once) {
  benchmark::RegisterBenchmark(name_of(what, dtype, threads, bytes).c_str(), [=](benchmark::State& state) {
    use_threads(threads);
    once();
    for (auto _ : state) once();
    state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
  })->UseRealTime();
}

}  // namespace finitude::bench
