// What a run left in its folder, and whether it has ended by itself, still runs or was killed. The folder may be
// anyone's: what is read of it is bounded, and what is no plain file is not opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace finitude::incident {

inline constexpr std::size_t kMaxEntries = 100'000;  // of one folder that are looked at
inline constexpr std::size_t kMaxCapsules = 1000;    // of one run

bool is_file(const std::string& path);  // a plain one, or a link to one

// The names in it, sorted; at most kMaxEntries. *all: whether these are all, or null. False: it cannot be read.
bool names_in(const std::string& folder, std::vector<std::string>* names, bool* all = nullptr);

// Folders of the processes of the run, ranks first and in order.
std::vector<std::string> member_folders(const std::string& folder);

// Folders of the capsules of the run and of its processes.
std::vector<std::string> capsule_folders(const std::string& folder);

// Is it the folder of a run, with a report or without?
bool is_run(const std::string& folder);

// As many steps as its ring and those of its processes hold: ranks take theirs together.
std::uint64_t steps_of(const std::string& folder);

// The process that wrote the folder: of its report, where that names one, else of its run.json; null: not known.
nlohmann::json process_of(const std::string& folder, const nlohmann::json* report);

// "finished", "running" or "killed". report: its report.json, null where it has none.
const char* state_of(const std::string& folder, const nlohmann::json* report);

// Steps that a ring counts by its header, which is a hint: the rest of it is not read. 0: it is none.
std::uint64_t steps_in_ring(const std::string& path);

// A capsule that an alarm or advisory names as pending, or that newer ones have pushed out, is there or never will be.
// Only of a process that has ended.
void settle_capsules(nlohmann::json* report);

// Of a checked report of a run that has not ended by itself: its outcome becomes the state of the run, and
// where the run was killed, its capsules are settled.
void put_state(const std::string& folder, nlohmann::json* report);

}  // namespace finitude::incident
