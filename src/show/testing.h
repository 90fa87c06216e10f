// What two traced reports have in common, as a document: for the test and the fuzz target of its renderer.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "compare/document.h"
#include "compare/trace_run.h"

namespace finitude::show {

inline nlohmann::json compared(const nlohmann::json& a, const nlohmann::json& b) {
  const compare::Run of_a = compare::run_of_trace(a), of_b = compare::run_of_trace(b);
  const auto rows = compare::align(compare::keys_of(of_a), compare::keys_of(of_b));
  std::vector<compare::Pair> pairs;
  std::vector<compare::Distance> results;
  compare::fill_in(of_a, of_b, rows, pairs, results);
  const auto about = compare::about_differences(a, {}, b, {});
  return compare::document({of_a, of_b, rows, pairs, results, about, "a.json", "b.json", true, true, 0},
                           compare::judge(of_a, of_b, rows, pairs, results), compare::unanswered(of_a, of_b, rows));
}

}  // namespace finitude::show
