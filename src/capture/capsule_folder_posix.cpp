#include "capture/capsule_folder_posix.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process_posix.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial-";
constexpr int kLevels = 3;                   // runs, a run, a process of it
constexpr std::size_t kMostEntries = 50000;  // that are looked at

// When a process began; nullopt: not known.
std::optional<std::uint64_t> start_of(long process) {
  const auto state = base::process_state(process);
  return state ? std::optional(state->start) : std::nullopt;
}

bool read_number(std::string_view* text, std::uint64_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  const bool more = text->starts_with('-');
  if (more) text->remove_prefix(1);
  return more || text->empty();
}

}  // namespace

Status make_partial(const std::string& folder, std::string* partial) {
  static std::atomic<unsigned> count = 0;
  const std::string begin = folder + std::string(kPartial) + base::this_machine() + "-" + std::to_string(getpid()) +
                            "-" + std::to_string(start_of(getpid()).value_or(0)) + "-";
  for (int tries = 0; tries < 16; ++tries) {
    *partial = begin + std::to_string(count++);
    if (mkdir(partial->c_str(), 0777) == 0) return {};
    if (errno != EEXIST) return Status(StatusCode::kUnwritable, std::string("cannot be made: ") + std::strerror(errno));
  }
  return Status(StatusCode::kUnwritable, "cannot be made");
}

bool is_left_behind(const std::string& name) {
  const std::size_t at = name.rfind(kPartial);
  if (!name.starts_with("step-") || at == std::string::npos) return false;
  std::string_view rest = std::string_view(name).substr(at + kPartial.size());
  const std::string here = base::this_machine();
  if (here == "0" || !rest.starts_with(here + "-")) return false;
  rest.remove_prefix(here.size() + 1);
  std::uint64_t process = 0, start = 0, number = 0;
  if (!read_number(&rest, &process) || !read_number(&rest, &start) || !read_number(&rest, &number) || !rest.empty())
    return false;
  if (process == 0 || process > 0x7fffffff || start == 0) return false;
  if (kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return true;
  const auto now = start_of(static_cast<long>(process));
  return now && *now != start;  // another one has its number
}

namespace {

void settle(const fs::path& folder, const std::function<bool(const std::string&)>& is_whole,
            std::vector<LeftBehind>* found) {
  std::error_code error;
  if (is_whole && is_whole(folder.string())) {
    const std::string name = folder.filename().string();
    const fs::path kept = folder.parent_path() / name.substr(0, name.rfind(kPartial));
    if (!fs::exists(fs::symlink_status(kept, error)))
      fs::rename(folder, kept, error);
    else
      return;  // it stays under the name that it has
    if (!error) found->push_back({folder.string(), kept.string()});
    return;
  }
  if (fs::remove_all(folder, error) > 0 && !error) found->push_back({folder.string(), ""});
}

}  // namespace

std::vector<LeftBehind> settle_left_behind(const std::string& runs,
                                           const std::function<bool(const std::string&)>& is_whole) noexcept try {
  std::vector<LeftBehind> found;
  std::size_t seen = 0;
  const std::function<void(const fs::path&, int)> look = [&](const fs::path& folder, int levels) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end && seen < kMostEntries;
         it.increment(error), ++seen) {
      std::error_code unknown;
      if (it->is_symlink(unknown) || !it->is_directory(unknown)) continue;
      const std::string name = it->path().filename().string();
      if (is_left_behind(name))
        settle(it->path(), is_whole, &found);
      else if (levels > 1 && !name.starts_with("step-"))
        look(it->path(), levels - 1);
    }
  };
  if (!runs.empty()) look(runs, kLevels);
  return found;
} catch (...) {
  return {};
}

void keep_newest(const std::string& folder, std::uint32_t count, const std::string& newest) noexcept try {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-") || name.find(kPartial) != std::string::npos || entry.is_symlink()) continue;
    if (fs::is_regular_file(entry.path() / "capsule.json")) found.emplace_back(entry.last_write_time(), entry.path());
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  for (std::size_t i = count; i < found.size(); ++i) {
    std::error_code error;
    if (found[i].second != fs::path(newest)) fs::remove_all(found[i].second, error);
  }
} catch (...) {
}

}  // namespace finitude::capture
