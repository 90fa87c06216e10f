// The list of all rules.
//
// To add one: copy rules/skeleton.cpp, declare its factory in rules/rules.h, add a line here, and add a case
// with its innocent twin to rules_test.cpp. The order matters only between equal scores (the earlier rule
// wins); it is the order of the scale in evidence.h.
#include "explain/rules/rules.h"

namespace finitude::explain {

const std::vector<std::unique_ptr<Rule>>& rules() {
  static const std::vector<std::unique_ptr<Rule>> kRules = [] {
    std::vector<std::unique_ptr<Rule>> list;
    // Where the value came from.
    list.push_back(uninitialised_memory());
    list.push_back(sticky_state());
    list.push_back(corrupted_state());
    list.push_back(bad_data());
    // Ops that fail in one way only.
    list.push_back(fully_masked_softmax());
    list.push_back(infeasible_ctc());
    list.push_back(variance_of_one());
    list.push_back(empty_mean());
    list.push_back(degenerate_linalg());
    list.push_back(collective());
    // The setting.
    list.push_back(memory_corruption());
    list.push_back(loss_scale_misuse());
    list.push_back(half_precision_underflow());
    list.push_back(clipping());
    list.push_back(optimizer_arithmetic());
    list.push_back(half_precision_overflow());
    list.push_back(wrong_backward());
    // An operand at a point without a value.
    list.push_back(underflow());
    list.push_back(log_of_negative());
    list.push_back(negative_domain());
    list.push_back(log_of_zero());
    list.push_back(division_by_zero());
    list.push_back(domain_edge());
    list.push_back(impossible_event());
    // Out of range.
    list.push_back(learning_rate());
    list.push_back(exploding_gradient());
    list.push_back(exp_overflow());
    list.push_back(overflow());
    // Infinities that were already there.
    list.push_back(zero_times_infinity());
    list.push_back(infinity_minus_infinity());
    return list;
  }();
  return kRules;
}

}  // namespace finitude::explain
