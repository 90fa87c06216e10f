// The processes of a run that trained: each left its report in a folder of its own below that of the run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace finitude::incident {

struct Member {
  std::string folder;
  nlohmann::json report;  // checked, its capsules settled; null: it left none that can be used
  std::string missing;    // why not
  bool is_whole = false;  // it wrote that at its end, and was not ended before
};

// The last part of the folder's path: "rank-3", "pid-77-1".
std::string name_of(const Member& member);
// Nothing: it is none of several ranks.
std::optional<std::uint64_t> rank_of(const Member& member);
// "rank 3", "process 77-1"
std::string label_of(const Member& member);

// The processes of the run, ranks first and in order. Of one that was killed: what it had reported until then, or what
// its ring of steps says. What lies in a folder may be anyone's; a file that is no report, or too large, is no report.
std::vector<Member> members(const std::string& run);

}  // namespace finitude::incident
