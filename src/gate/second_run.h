// Does something run a second time? Who runs it says so here; the gate asks, and counts and records nothing of it. GIL
// held.
#pragma once

namespace finitude::bindings {

// A window, in place: its next decision belongs to the Python side.
bool second_run_under_way() noexcept;
void set_second_run(bool under_way) noexcept;
// A unit of work, by calling it: whatever optimizer steps, the Python side decides.
bool units_run_again() noexcept;
void set_units_run_again(bool again) noexcept;
// One of the two: what happens has been counted in the first run.
inline bool is_of_second_run() noexcept { return second_run_under_way() || units_run_again(); }

}  // namespace finitude::bindings
