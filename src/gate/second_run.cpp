#include "gate/second_run.h"

namespace finitude::bindings {
namespace {

// Plain variables: both are read and written with the GIL held. They are of the process, not of a thread, because a
// second run executes the program, which may step in any thread.
bool of_window = false, of_unit = false;

}  // namespace

bool second_run_under_way() noexcept { return of_window; }
void set_second_run(bool under_way) noexcept { of_window = under_way; }
bool units_run_again() noexcept { return of_unit; }
void set_units_run_again(bool again) noexcept { of_unit = again; }

}  // namespace finitude::bindings
