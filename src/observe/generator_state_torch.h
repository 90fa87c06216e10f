// The whole state of a generator as bytes, taken and put back without a tensor: of the CPU its Mersenne Twister, of
// CUDA the seed and the offset of Philox.
#pragma once

#include <ATen/core/Generator.h>

#include <string>

namespace finitude::observe {

// Empty for generators of other devices, and while a CUDA graph is captured.
std::string generator_state(const at::Generator& generator);
// False where the bytes are no state of such a generator.
bool set_generator_state(const at::Generator& generator, const std::string& state);

}  // namespace finitude::observe
