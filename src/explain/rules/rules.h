// The factories of all rules, one per file of this folder.
#pragma once

#include <memory>

#include "explain/explain.h"

namespace finitude::explain {

std::unique_ptr<Rule> bad_data();
std::unique_ptr<Rule> clipping();
std::unique_ptr<Rule> collective();
std::unique_ptr<Rule> corrupted_state();
std::unique_ptr<Rule> degenerate_linalg();
std::unique_ptr<Rule> division_by_zero();
std::unique_ptr<Rule> domain_edge();
std::unique_ptr<Rule> empty_mean();
std::unique_ptr<Rule> exp_overflow();
std::unique_ptr<Rule> exploding_gradient();
std::unique_ptr<Rule> fully_masked_softmax();
std::unique_ptr<Rule> half_precision_overflow();
std::unique_ptr<Rule> half_precision_underflow();
std::unique_ptr<Rule> impossible_event();
std::unique_ptr<Rule> infeasible_ctc();
std::unique_ptr<Rule> infinity_minus_infinity();
std::unique_ptr<Rule> learning_rate();
std::unique_ptr<Rule> log_of_negative();
std::unique_ptr<Rule> log_of_zero();
std::unique_ptr<Rule> loss_scale_misuse();
std::unique_ptr<Rule> memory_corruption();
std::unique_ptr<Rule> negative_domain();
std::unique_ptr<Rule> optimizer_arithmetic();
std::unique_ptr<Rule> overflow();
std::unique_ptr<Rule> skeleton();  // an example, not in the list
std::unique_ptr<Rule> sticky_state();
std::unique_ptr<Rule> underflow();
std::unique_ptr<Rule> uninitialised_memory();
std::unique_ptr<Rule> variance_of_one();
std::unique_ptr<Rule> wrong_backward();
std::unique_ptr<Rule> zero_times_infinity();

}  // namespace finitude::explain
