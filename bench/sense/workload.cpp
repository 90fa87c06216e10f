#include "sense/workload.h"

#include <omp.h>

#include <cstdlib>
#include <new>

namespace finitude::bench {
namespace {

constexpr std::size_t kMost = std::size_t{256} << 20;

void* ordinary_values() {
  auto* words = static_cast<std::uint32_t*>(std::aligned_alloc(4096, kMost));
  if (words == nullptr) throw std::bad_alloc();
  for (std::size_t i = 0; i < kMost / 4; ++i) {
    words[i] = 0x38383838u ^ (static_cast<std::uint32_t>(i) * 2654435761u & 0x87038703u);
  }
  return words;
}

void run(sense::Threads::Work work, void* context) noexcept {
#pragma omp parallel
  work(context);
}

}  // namespace

void* memory() {
  static void* const kMemory = ordinary_values();
  return kMemory;
}

void use_threads(int count) { omp_set_num_threads(count); }

sense::Threads lent_threads() { return {run}; }

std::string name_of(const std::string& what, sense::DType dtype, int threads, std::size_t bytes) {
  return what + "/" + std::string(sense::info(dtype).name) + "/" + std::to_string(threads) + "/" +
         std::to_string(bytes);
}

}  // namespace finitude::bench
