// The whole state of a CPU generator as bytes, taken and put back without a tensor.
#pragma once

#include <ATen/core/Generator.h>

#include <string>

namespace finitude::observe {

// Empty for generators of other devices.
std::string generator_state(const at::Generator& generator);
// False where the bytes are no state.
bool set_generator_state(const at::Generator& generator, const std::string& state);

}  // namespace finitude::observe
