// The folders of capsules: those that are being written, those that somebody was killed over, those that are kept.
#pragma once

#include <cstdint>
#include <string>

#include "finitude/status.h"

namespace finitude::capture {

// Makes the folder FOLDER.partial-MACHINE-PID-START-N, which says who writes it: the system that runs (its boot, and the namespace of
// the process number), the number of the process and when that began. Where the system does not tell, MACHINE is 0. *partial: its path.
Status make_partial(const std::string& folder, std::string* partial);

// Is that the name of a folder whose writer is certainly gone? Not where it may run on another machine or in another container.
bool is_left_behind(const std::string& name);

// Removes those below `runs`: in it, in the folders of its runs, and of their processes. Follows no link. Never throws.
void remove_left_behind(const std::string& runs) noexcept;

// Of the capsules in the folder the newest `count` stay, and `newest` in any case.
void keep_newest(const std::string& folder, std::uint32_t count, const std::string& newest) noexcept;

}  // namespace finitude::capture
