// What cpu() finds, beside what the kernel says of the same processor.
#include "sense/cpu_posix.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "sense/kernels.h"

namespace finitude::sense {
namespace {

#if defined(__x86_64__)
std::set<std::string> flags_of_the_kernel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

TEST(Cpu, AgreesWithTheKernel) {
  const std::set<std::string> flags = flags_of_the_kernel();
  ASSERT_FALSE(flags.empty());
  const auto all = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (flags.count(name) == 0) return false;
    }
    return true;
  };
  EXPECT_EQ(cpu().sse4, all({"ssse3", "sse4_1", "sse4_2", "aes", "pclmulqdq"}));
  EXPECT_EQ(cpu().avx2, cpu().sse4 && all({"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm"}));
  EXPECT_EQ(cpu().avx3, cpu().avx2 && all({"avx512f", "avx512bw", "avx512dq", "avx512vl"}));
  EXPECT_FALSE(cpu().neon);
}
#endif

TEST(Cpu, BestKernelsAreThoseOfTheBestInstructions) {
  const std::string best = available_kernels().front()->isa;
#if defined(__x86_64__)
  EXPECT_EQ(best, cpu().avx3 ? "AVX3" : cpu().avx2 ? "AVX2" : cpu().sse4 ? "SSE4" : "EMU128");
#elif defined(__aarch64__)
  EXPECT_EQ(best, "NEON");
#endif
}

}  // namespace
}  // namespace finitude::sense
