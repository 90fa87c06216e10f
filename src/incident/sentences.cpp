#include "incident/sentences.h"

namespace finitude::incident {

std::string count_text(std::uint64_t nan, std::uint64_t inf) {
  std::string text = nan != 0 ? std::to_string(nan) + " NaN" : "";
  if (inf != 0) text += (text.empty() ? "" : " and ") + std::to_string(inf) + " Inf";
  return text.empty() ? "no" : text;
}

std::string parts_of_step(bool loss, bool gradients) {
  return loss && gradients ? "loss and gradients" : loss ? "the loss" : "gradients";
}

std::string loss_text(bool is_nan, bool harmless) {
  return std::string("loss is ") + (is_nan ? "NaN" : "Inf") +
         (harmless ? "; gradients are finite, weights were not in danger" : "");
}

std::string gradient_text(const std::string& name) { return "gradient of " + name + " is not finite"; }

std::string held_before_text(const std::string& name, const std::string& count) {
  return name + " already held " + count + " before the first step";
}

std::string action_text(decide::Action action, const StepEnd& end) {
  if (decide::ends(action)) {
    if (end.undone) return "the step was undone, stopped";
    return end.at_start ? "stopped before the optimizer" : "stopped";
  }
  if (!decide::vetoes(action)) return "reported, the step is applied";
  if (end.undone) return "the step was undone";
  return end.applied ? "reported, the step is applied" : "the step was skipped";
}

}  // namespace finitude::incident
