#include "replay/player_process_posix.h"

#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string_view>

extern char** environ;

namespace finitude::replay {
namespace {

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

void replace(const std::string& name, const std::string& value, std::vector<std::string>* variables) {
  std::erase_if(*variables, [&](const std::string& one) { return one.starts_with(name + "="); });
  if (!value.empty()) variables->push_back(name + "=" + value);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
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

  int run(const PlayerStart& start, pid_t* process) {
    posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDONLY, 0);
    if (start.out_file.empty())
      posix_spawn_file_actions_adddup2(&files_, start.out, 1);
    else
      posix_spawn_file_actions_addopen(&files_, 1, start.out_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
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
    std::vector<std::string> words{start.program}, variables = environment_with_torch();
    words.insert(words.end(), start.words.begin(), start.words.end());
    for (const auto& [name, value] : start.variables) replace(name, value, &variables);
    return posix_spawn(process, start.program.c_str(), &files_, &how_, pointers(words).data(),
                       pointers(variables).data());
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t how_;
};

}  // namespace

int start_player(const PlayerStart& start, pid_t* process) { return Spawn().run(start, process); }

}  // namespace finitude::replay
