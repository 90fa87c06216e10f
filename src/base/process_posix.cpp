#include "base/process_posix.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/checksum.h"

namespace finitude::base {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link(const std::string& path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

}  // namespace

std::string this_machine() {
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id"), space = link("/proc/self/ns/pid");
  // The /proc of another process namespace describes other processes.
  if (boot.empty() || space.empty() || link("/proc/self") != std::to_string(getpid())) return "0";
  const std::string both = boot + " " + space;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(checksum(both.data(), both.size())));
  return text;
}

std::optional<ProcessState> process_state(long process) {
  const std::string stat = first_line("/proc/" + std::to_string(process) + "/stat");
  std::size_t at = stat.rfind(')');  // its name may hold anything
  if (at == std::string::npos || at + 2 >= stat.size()) return std::nullopt;
  ProcessState state;
  state.letter = stat[at + 2];
  for (int field = 2; field < 22; ++field) {
    at = stat.find(' ', at + 1);
    if (at == std::string::npos) return std::nullopt;
  }
  const auto [end, error] = std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), state.start);
  return error == std::errc() ? std::optional(state) : std::nullopt;
}

bool is_alive(std::int64_t process, std::uint64_t start, const std::string& machine) {
  if (process <= 0 || process > 0x7fffffff || machine != this_machine()) return false;
  if (kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return false;
  const auto now = process_state(static_cast<long>(process));
  if (!now) return true;
  return now->letter != 'Z' && now->letter != 'X' && (start == 0 || now->start == 0 || now->start == start);
}

}  // namespace finitude::base
