#include "replay/replay_process_posix.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/own_children_posix.h"
#include "replay/player_process_posix.h"

namespace finitude::replay {
namespace {

using namespace std::chrono_literals;

constexpr auto kMost = 300s;  // what is replayed is small; a machine may be busy

// False: it was ended, with why.
bool wait_for(pid_t process, const std::atomic<bool>* cancelled, std::string* why) {
  const auto until = std::chrono::steady_clock::now() + kMost;
  for (auto pause = 1ms;; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    int status = 0;
    const pid_t found = waitpid(process, &status, WNOHANG);
    // The program may wait for any child of its process, and have been reported of this one, or of none at all.
    if (found == process || (found < 0 && errno == ECHILD)) return true;
    const bool late = std::chrono::steady_clock::now() > until, over = cancelled != nullptr && *cancelled;
    if (late || over) {
      kill(process, SIGKILL);
      waitpid(process, &status, 0);
      *why = over ? "the program ended" : "it took too long";
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::string replayed_apart(const std::string& player, const std::string& capsule, const std::atomic<bool>* cancelled) {
  const std::string out = capsule + "/replay.txt";
  pid_t process = 0;
  std::string why, said;
  base::OwnChild child;
  const int error = start_player({player, {"--check", capsule}, out, -1, {}}, &process);
  child.started(error == 0 ? process : 0);
  if (error != 0) {
    why = std::string(player) + ": " + std::strerror(error);
  } else if (wait_for(process, cancelled, &why)) {
    std::ifstream file(out);
    if (!std::getline(file, said) || file.eof()) said.clear();  // cut off
    if (said.empty()) why = "the process that was to do it failed";
  }
  unlink(out.c_str());
  return said.empty() ? "not tried (" + why + ")" : said;
}

}  // namespace finitude::replay
