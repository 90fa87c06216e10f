#include "recorder/folder_posix.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

namespace finitude::recorder {

namespace fs = std::filesystem;

ThisProcess this_process() {
  ThisProcess process;
  std::error_code error;
  process.program = fs::read_symlink("/proc/self/exe", error).string();
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string word;
  while (std::getline(in, word, '\0')) process.command.push_back(word);
  process.pid = getpid();
  return process;
}

MachineName machine_name() {
  utsname name{};
  if (uname(&name) != 0) return {};
  return {std::string(name.sysname) + "-" + name.release, name.machine, name.nodename};
}

Result<std::string> make_folder(const std::string& runs, const std::string& program) {
  std::error_code error;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  char time[32];
  const std::size_t length = std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &local);
  // Runs sorted by name are sorted by time, also those that begin in the same second.
  std::snprintf(time + length, sizeof time - length, "-%03d", static_cast<int>(now.tv_nsec / 1'000'000));
  const std::string stem = fs::path(program).stem().string();
  const fs::path parent = fs::absolute(runs, error);
  fs::create_directories(parent, error);
  if (error) return Status(StatusCode::kUnwritable, "cannot make " + parent.string() + ": " + error.message());
  const std::string name = std::string(time) + "-" + (stem.empty() ? "run" : stem) + "-" + std::to_string(getpid());
  for (int again = 1; again < 100; ++again) {  // a program may have more than one recorder
    const fs::path path = parent / (again == 1 ? name : name + "-" + std::to_string(again));
    if (fs::create_directory(path, error)) return path.lexically_normal().string();
    if (error) return Status(StatusCode::kUnwritable, "cannot make " + path.string() + ": " + error.message());
  }
  return Status(StatusCode::kUnwritable,
                "cannot make " + name + " in " + parent.string() + ": there are too many of it");
}

std::string free_name(const std::string& folder, const std::string& name) {
  std::error_code error;
  std::string path = (fs::path(folder) / name).string();
  for (int again = 2; again < 100 && fs::exists(path, error); ++again)
    path = (fs::path(folder) / (name + "-" + std::to_string(again))).string();
  return path;
}

Status write_file(const std::string& path, std::string_view bytes) {
  std::error_code error;
  const fs::path parent = fs::absolute(path, error).parent_path();
  fs::create_directories(parent, error);
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) {
      fs::remove(temporary, error);
      return Status(StatusCode::kUnwritable, "cannot write " + path);
    }
  }
  fs::rename(temporary, path, error);
  return error ? Status(StatusCode::kUnwritable, "cannot write " + path + ": " + error.message()) : Status();
}

}  // namespace finitude::recorder
