// Starts the program finitude-replay as a process of its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace finitude::replay {

struct PlayerStart {
  std::string program;             // path of finitude-replay
  std::vector<std::string> words;  // behind its name
  // Where its standard output goes: a file, which is emptied, or else this open descriptor.
  std::string out_file;
  int out = -1;
  // Variables that it gets in the place of those of this process; with an empty value it does not have them.
  std::vector<std::pair<std::string, std::string>> variables;
};

// 0, or errno. It finds the torch that this process has, reads nothing, writes nothing to standard error, has no other
// file of this process, blocks no signal and gets none of the terminal. The caller waits for it.
int start_player(const PlayerStart& start, pid_t* process);

}  // namespace finitude::replay
