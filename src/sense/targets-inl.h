// The instruction sets that a file of kernels is compiled for, and how one is picked at run time. Of Highway only
// headers are used: its own dispatch would link libhwy. Include this before hwy/foreach_target.h.
#pragma once

#include <cstddef>

#include "sense/cpu_posix.h"

// All others are off. AVX3_DL has nothing that a scan could use over AVX3, and machines that end at SSSE3 are gone.
// Vectors of unknown length (SVE, RVV) cannot be members of a struct, which the kernels rely on; SVE machines have
// NEON.
#define HWY_DISABLED_TARGETS (~(HWY_AVX3 | HWY_AVX2 | HWY_SSE4 | HWY_NEON | HWY_EMU128 | HWY_SCALAR))

namespace finitude::sense {

// What a name means for one instruction set; nothing where the build lacks that set.
template <class T>
struct OfTarget {
  const T* value;
  bool Cpu::*needs;  // null: what this build takes for granted

  bool runs() const noexcept { return needs == nullptr || cpu().*needs; }
};

// The first that this machine runs. `targets` ends with one that it always does.
template <class T, std::size_t n>
const T* best_of(const OfTarget<T> (&targets)[n]) noexcept {
  for (const OfTarget<T>& target : targets) {
    if (target.value != nullptr && target.runs()) return target.value;
  }
  return nullptr;
}

}  // namespace finitude::sense

// {OfTarget...}, best first, of a constant that each HWY_NAMESPACE defines. The last is of the set that the compiler's
// own flags name; it may be one of those before it.
#define FINITUDE_OF_TARGETS(name)                                                                                   \
  {                                                                                                                 \
    {HWY_CHOOSE_AVX3(name), &::finitude::sense::Cpu::avx3}, {HWY_CHOOSE_AVX2(name), &::finitude::sense::Cpu::avx2}, \
        {HWY_CHOOSE_SSE4(name), &::finitude::sense::Cpu::sse4},                                                     \
        {HWY_CHOOSE_NEON(name), &::finitude::sense::Cpu::neon}, {&HWY_STATIC_DISPATCH(name), nullptr},              \
  }
