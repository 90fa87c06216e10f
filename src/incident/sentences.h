// What is said of a bad step, once for programs in Python and in C++.
#pragma once

#include <cstdint>
#include <string>

#include "decide/policy.h"

namespace finitude::incident {

// "3 NaN and 1 Inf"; "no" where there is neither.
std::string count_text(std::uint64_t nan, std::uint64_t inf);

// What of a step there is, as its subject: "loss and gradients", "the loss", "gradients".
std::string parts_of_step(bool loss, bool gradients);
// "loss is NaN; gradients are finite, weights were not in danger". harmless: every gradient is finite.
std::string loss_text(bool is_nan, bool harmless);
// "gradient of fc.weight is not finite"
std::string gradient_text(const std::string& name);
// "bn.running_mean already held 2 NaN before the first step". count: of count_text.
std::string held_before_text(const std::string& name, const std::string& count);

// What becomes of a bad step under an action.
struct StepEnd {
  bool applied = false;   // the optimizer has stepped, and nothing puts that back
  bool undone = false;    // it had stepped, and that was put back
  bool at_start = false;  // nothing had stepped: what the optimizer began with was bad
};
// "the step was skipped"
std::string action_text(decide::Action action, const StepEnd& end);

}  // namespace finitude::incident
