// The folders of capsules: those that are being written, those that somebody was killed over, those that are kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "finitude/status.h"

namespace finitude::capture {

// Makes the folder FOLDER.partial-MACHINE-PID-START-N, which says who writes it: the system that runs (its boot, and
// the namespace of the process number), the number of the process and when that began. Where the system does not say,
// MACHINE is 0. *partial: its path.
Status make_partial(const std::string& folder, std::string* partial);

// Is that the name of a folder whose writer is certainly gone? Not where it may run on another machine or in another
// container.
bool is_left_behind(const std::string& name);

// A folder whose writer is gone.
struct LeftBehind {
  std::string folder;
  std::string kept_as;  // the name that it has now; empty: it was not whole, and is removed
};

// What becomes of those below `runs`: in it, in the folders of its runs, and of their processes. One that is_whole says
// is complete gets its name, unless another has it; what is not complete is removed. Follows no link. Never throws.
std::vector<LeftBehind> settle_left_behind(const std::string& runs,
                                           const std::function<bool(const std::string& folder)>& is_whole) noexcept;

// Of the capsules in the folder the newest `count` stay, and `newest` in any case.
void keep_newest(const std::string& folder, std::uint32_t count, const std::string& newest) noexcept;

}  // namespace finitude::capture
