// The outcome of a comparison as JSON: docs/diff.md lists its keys. Renderers are in show.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compare/about.h"
#include "compare/judge.h"
#include "compare/unanswered.h"

namespace finitude::compare {

struct Sides {
  const Run &a, &b;
  const std::vector<Row>& rows;
  const std::vector<Pair>& pairs;
  const std::vector<Distance>& results;
  const std::vector<AboutDifference>& about;
  std::string name_a, name_b;
  bool reproduced_a = true, reproduced_b = true;
  std::uint64_t values_left_out = 0;
  bool by_statistics = false;  // no values were there to compare
};

nlohmann::json document(const Sides& sides, const Judgement& judgement, const Unanswered& unanswered);

}  // namespace finitude::compare
