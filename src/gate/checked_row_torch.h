// Losses that the script looks at and drops before backward, one after another: `if not torch.isfinite(loss): continue`
// in each step. No backward comes that would show it, so the row is counted as they are looked at.
//
// A script may also look at parts of one loss, as of each sample, and drop those that are not finite. How many values
// it looks at in a step that is applied distinguishes the two. Only values of one element count. All with the GIL held.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace finitude::bindings {

// So many dropped steps in a row are asked about; 0: none. Forgets what was counted.
void watch_checked_rows(std::uint32_t limit) noexcept;

// The script looks at a value of a graph, finite or not, which is no leaf. A few instructions.
void note_look(const at::Tensor& value) noexcept;
// The value that it looked at last is not finite, belongs to an optimizer, and is no part of an earlier one.
void note_bad_look() noexcept;
// An outermost backward begins, or gradients are asked for.
void end_checked_row() noexcept;
// A step is applied.
void note_step_of_looks() noexcept;

bool is_checked_row_long() noexcept;
// Called after the program's call has returned, where the row is long: asks the Python side. False: an error is set.
bool report_checked_row();

}  // namespace finitude::bindings
