// The dumps of one step that the ranks of a run wrote.
#pragma once

#include <string>
#include <vector>

namespace finitude::show {

// `path` and the same file of other ranks, in the order of ranks: .../rank-3/dumps/step-000100.json, msprobe's
// step100/rank3/dump.json. Only `path` where no folder above it is named so.
std::vector<std::string> dumps_of_ranks(const std::string& path);

}  // namespace finitude::show
