#include "replay/replay_process_posix.h"

#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>
#include <vector>

extern char** environ;

namespace finitude::replay {
namespace {

using namespace std::chrono_literals;

constexpr auto kMost = 300s;  // what is replayed is small; a machine may be busy

int find_torch(dl_phdr_info* info, std::size_t, void* folder) {
  const std::string_view file = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const std::size_t slash = file.rfind('/');
  if (slash == std::string_view::npos || file.substr(slash + 1) != "libc10.so") return 0;
  *static_cast<std::string*>(folder) = file.substr(0, slash);
  return 1;
}

// That of this process, and where its torch lies first among the folders of libraries: the player may have been built
// against one that is elsewhere, or gone.
std::vector<std::string> environment_with_torch() {
  std::string folder;
  dl_iterate_phdr(&find_torch, &folder);
  std::error_code error;
  if (!folder.empty()) folder = std::filesystem::absolute(folder, error).string();
  constexpr std::string_view kPaths = "LD_LIBRARY_PATH=";
  std::vector<std::string> all;
  std::string further;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view variable = *one;
    if (folder.empty() || !variable.starts_with(kPaths))
      all.emplace_back(variable);
    else if (variable.size() > kPaths.size())
      further = ":" + std::string(variable.substr(kPaths.size()));
  }
  if (!folder.empty()) all.push_back(std::string(kPaths) + folder + further);
  return all;
}

class Spawn {
 public:
  Spawn() {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&how_);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&how_);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  // 0, or errno.
  int run(const std::string& program, const std::string& capsule, const std::string& out, pid_t* process) {
    posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files_, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files_, 2, "/dev/null", O_WRONLY, 0);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    posix_spawn_file_actions_addclosefrom_np(&files_, 3);
#endif
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&how_, &none);
    posix_spawnattr_setsigdefault(&how_, &all);
    posix_spawnattr_setpgroup(&how_, 0);  // Ctrl-C is for the program
    posix_spawnattr_setflags(&how_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    std::string words[] = {program, "--check", capsule};
    char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    std::vector<std::string> set = environment_with_torch();
    std::vector<char*> variables;
    for (std::string& one : set) variables.push_back(one.data());
    variables.push_back(nullptr);
    return posix_spawn(process, program.c_str(), &files_, &how_, arguments, variables.data());
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t how_;
};

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
  if (const int error = Spawn().run(player, capsule, out, &process); error != 0) {
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
