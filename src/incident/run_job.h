// The job of a scheduler or launcher that a run belongs to, as its run.json says. The folder may be anyone's.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace finitude::incident {

// Of the run in this folder: key of `job` in run.json -> short text. What its own run.json does not say is taken from
// its first processes: the variables of a launcher are set only there. Null: no job is known.
nlohmann::json job_of(const std::string& folder);

// "SLURM job 17 on node[1-2], restart 1; torchelastic run r, restart 0 of 3". Not yet printable. Empty: no job.
std::string job_text(const nlohmann::json& job);

// "SLURM job 17" or "torchelastic run r": as much as there is room for in a list. Not yet printable.
std::string job_name(const nlohmann::json& job);

}  // namespace finitude::incident
