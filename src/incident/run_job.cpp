#include "incident/run_job.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "incident/run_folder.h"
#include "show/json_file.h"
#include "show/read.h"

namespace finitude::incident {
namespace {

using nlohmann::json;
using show::text;

constexpr std::size_t kMostBytes = std::size_t{8} << 20;  // of run.json
constexpr std::size_t kMostMembers = 16;                  // of a run, that are asked
constexpr std::size_t kMostText = 2000;  // bytes: MOST_TEXT characters of python/finitude/report/run_facts.py
constexpr const char* kKeys[] = {"slurm_job", "slurm_nodes", "slurm_node_count", "slurm_restarts",
                                 "slurm_end", "elastic_run", "elastic_restarts", "elastic_most_restarts"};

long number_of(const json& text) { return std::strtol(text.get_ref<const std::string&>().c_str(), nullptr, 10); }

// Adds what the run.json in this folder says and is not known yet. Of the starts of a launcher the last one counts.
void add(const std::string& folder, json* job) {
  std::string bytes;
  json run;
  if (!is_file(folder + "/run.json") || !show::read_file(folder + "/run.json", kMostBytes, bytes).empty() ||
      !show::parse_json(bytes, run).empty() || !run.is_object())
    return;
  const json found = run.value("job", json());
  if (!found.is_object()) return;
  for (const char* key : kKeys) {
    const json value = found.value(key, json());
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kMostText) continue;
    const bool is_later =
        std::string_view(key) == "elastic_restarts" && job->contains(key) && number_of(value) > number_of((*job)[key]);
    if (is_later || !job->contains(key)) (*job)[key] = value;
  }
}

std::string after(const std::string& before, const std::string& value) {
  return value.empty() ? value : before + value;
}

std::string slurm_name(const json& job) { return after("SLURM job ", text(job, "slurm_job")); }

// Every torchrun without --rdzv-id has the name "none".
std::string elastic_name(const json& job) {
  const std::string run = text(job, "elastic_run");
  if (run != "none") return after("torchelastic run ", run);
  return job.contains("elastic_restarts") && number_of(job["elastic_restarts"]) > 0 ? "torchelastic" : "";
}

}  // namespace

json job_of(const std::string& folder) {
  json job = json::object();
  add(folder, &job);
  std::vector<std::string> members = member_folders(folder);
  members.resize(std::min(members.size(), kMostMembers));
  for (const std::string& member : members) add(member, &job);
  return job.empty() ? json() : job;
}

std::string job_text(const json& job) {
  std::string slurm = slurm_name(job), elastic = elastic_name(job);
  if (!slurm.empty())
    slurm += after(" on ", text(job, "slurm_nodes")) + after(", restart ", text(job, "slurm_restarts"));
  if (!elastic.empty()) {
    const std::string restarts = after(", restart ", text(job, "elastic_restarts"));
    elastic += restarts + (restarts.empty() ? restarts : after(" of ", text(job, "elastic_most_restarts")));
  }
  return slurm + (slurm.empty() || elastic.empty() ? "" : "; ") + elastic;
}

std::string job_name(const json& job) {
  const std::string slurm = slurm_name(job);
  return slurm.empty() ? elastic_name(job) : slurm;
}

}  // namespace finitude::incident
