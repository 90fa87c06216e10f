// --verify: one healthy step in N is recorded with a digest of what each operation read and gave, and played again
// before it is applied. GIL held for all of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gate/state_torch.h"

namespace finitude::bindings {

// The recording of a step that will be verified begins: parameters and optimizer state are read, so that it can be said
// whether their bits were the same at its end.
void verified_step_begins();
// What was recorded is the step that `entry` is about to apply. The recording ends here; the step is played. since: as
// LossNote::serial, of the last loss before the recording. False: it could not be played.
bool verify_recorded_step(const OptimizerEntry& entry, std::uint64_t since);
// The same of the optimizer's own step, which is recorded from here until it has been applied.
void verified_optimizer_begins();
void verify_optimizer_step(const OptimizerEntry& entry);
void forget_verified_steps() noexcept;

// Something was found that report_verified() is to report.
bool verified_has_news() noexcept;
// Hands it to native_callbacks.on_verified(optimizer, JSON). False: with a Python error for the program.
bool report_verified(OptimizerEntry& entry);

struct VerifiedCounts {
  std::uint64_t steps = 0, optimizer_steps = 0, mismatches = 0, not_played = 0, unjudged = 0;
  std::string why_not;                        // of the last step that could not be played
  std::vector<std::string> nondeterministic;  // operators whose bits differ between plays
};
VerifiedCounts verified_counts();

}  // namespace finitude::bindings
