// Which vector instructions a program may use here: those that the processor has and whose registers the system keeps.
#pragma once

namespace finitude::sense {

// Each holds what Highway lets the compiler use for its target of that name.
struct Cpu {
  bool sse4 = false;  // SSE4.2, AES, PCLMULQDQ
  bool avx2 = false;  // with BMI, BMI2, FMA, F16C, LZCNT
  bool avx3 = false;  // AVX-512 F, BW, DQ, VL
  bool neon = false;  // Advanced SIMD with AES
};

// The processor is asked once. Any thread.
const Cpu& cpu() noexcept;

}  // namespace finitude::sense
