// Since which step a training was on its way to a bad one: what grew over the applied steps before it, or a learning
// rate that jumped. How growth is found: src/signal/onset.h. One implementation for programs in Python and in C++.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace finitude::incident {

struct AppliedStep {
  std::uint64_t step = 0;
  double loss = 0, gradient = 0;  // gradient: the largest magnitude of all
  double rate = 0;                // learning rate of the first group
};

// `onsets` of a cause (docs/report.schema.json): one object for each of loss, gradient and learning rate that grew or
// jumped. steps: oldest first.
nlohmann::ordered_json onsets_of(const std::vector<AppliedStep>& steps);

// Is a bad step with a cause of that class of the scale of the loss, so that these onsets say nothing of it? Only the
// loss grew then: the gradients, which the step gets unscaled, did not.
bool is_of_scale(const std::string& cause, const nlohmann::ordered_json& onsets);

// `onset` of an alarm: {step, name, rate, lr, text}, or null. warnings: entries of `warnings` of the report, oldest
// first, of which those of `optimizer` count.
nlohmann::ordered_json onset_of(const std::vector<AppliedStep>& steps, const nlohmann::json& warnings,
                                const std::string& optimizer);

}  // namespace finitude::incident
