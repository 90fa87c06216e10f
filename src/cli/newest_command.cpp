// `newest KIND [N]`: the paths that a command takes where none was named, for those that are written in Python. Each
// ends with a zero byte: a path may hold any other.
#include "cli/newest.h"

namespace finitude::cli {

int newest_command(const NewestWords& words, const Console& console) {
  const Wanted wanted = words.kind == "run"       ? Wanted::kRun
                        : words.kind == "capsule" ? Wanted::kCapsule
                                                  : Wanted::kRecording;
  std::vector<std::string> found;
  if (words.count == 2) {
    found = take_newest_two(wanted, console);
  } else if (std::string one = take_newest(wanted, console); !one.empty()) {
    found.push_back(std::move(one));
  }
  for (const std::string& path : found) console.out << path << '\0';
  return found.empty() ? kUnreadable : kDone;
}

}  // namespace finitude::cli
