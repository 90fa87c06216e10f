// Which parameters are computed in half precision: a float32 weight that autocast or the program casts to float16 has a
// gradient that comes through float16, and overflows there. The graph of a loss shows it. GIL held for all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace finitude::bindings {

// A step is looked at from here on; and it is over: its graphs count from now on, those of the step before no more.
void begin_casts() noexcept;
void end_casts() noexcept;
// The root of a backward that is about to run. Walks its graph, at most 20,000 nodes of it: for single steps.
void look_at_casts(const at::Tensor& root);
// Has the gradient of this parameter come through float16, in the last step that was looked at?
bool is_computed_in_half(const c10::TensorImpl& parameter) noexcept;
// Changes whenever the answers may.
std::uint64_t casts_seen() noexcept;

}  // namespace finitude::bindings
