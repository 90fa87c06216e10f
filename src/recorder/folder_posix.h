// The folder of a run, and the process that it is of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/status.h"

namespace finitude::recorder {

struct ThisProcess {
  std::string program;               // absolute path
  std::vector<std::string> command;  // its words
  long pid = 0;
};
ThisProcess this_process();

struct MachineName {
  std::string platform, machine, host;  // "Linux-6.1.0", "x86_64", the name in its network
};
MachineName machine_name();

// Makes RUNS/20261122-041500-123-PROGRAM-PID. Its absolute path, or why not.
Result<std::string> make_folder(const std::string& runs, const std::string& program);

// A name in the folder that is not taken: step-000412, step-000412-2 ...
std::string free_name(const std::string& folder, const std::string& name);

// Under a temporary name first: the caller that reads it meanwhile sees the old file or the new one.
Status write_file(const std::string& path, std::string_view bytes);

}  // namespace finitude::recorder
