// Which process it was, and whether it is still there: a number alone may be another one's by now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace finitude::base {

// Of this boot of this machine, and of what the numbers of processes count in, in 16 digits; "0": not known. The same
// as python/finitude/base/alive.py makes.
std::string this_machine();

struct ProcessState {
  char letter = 0;          // as in /proc/PID/stat
  std::uint64_t start = 0;  // when it began, in ticks since the machine did
};
// nullopt: not known.
std::optional<ProcessState> process_state(long process);

// Is the process there that began then? False also where it may be on another machine. start 0: not known.
bool is_alive(std::int64_t process, std::uint64_t start, const std::string& machine);

}  // namespace finitude::base
