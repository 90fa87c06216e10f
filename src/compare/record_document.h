// The outcome of a comparison of records as JSON: docs/diff.md lists its keys.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compare/about.h"
#include "compare/record_judge.h"

namespace finitude::compare {

struct RecordSides {
  const Dump &a, &b;
  const std::vector<RecordRow>& rows;
  const std::vector<RecordPair>& pairs;
  const std::vector<AboutDifference>& about;
  std::string name_a, name_b;
};

nlohmann::json record_document(const RecordSides& sides, const RecordJudgement& judgement);

}  // namespace finitude::compare
