// The replay of a capsule in a process of its own: beside a program that trains, none can be made inside of it, since
// generators and settings of torch are those of the whole process.
#pragma once

#include <atomic>
#include <string>

namespace finitude::replay {

// Runs `player --check capsule`, and gives what that says: how it comes out in one line, as `replay` of capsule.json
// has it, or "not tried" and why. It reads nothing, is reported of no signal of the terminal, and its words go through
// a file in the folder of the capsule, which is gone afterwards. cancelled: ends it; may be null. Any thread; waits.
std::string replayed_apart(const std::string& player, const std::string& capsule, const std::atomic<bool>* cancelled);

}  // namespace finitude::replay
