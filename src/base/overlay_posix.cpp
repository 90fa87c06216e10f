#include "base/overlay_posix.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace finitude::base {
namespace {

// "mount /data: ENODEV"; of an error that has no name here the number.
std::string failure(const std::string& call) {
  static constexpr std::pair<int, const char*> kNames[] = {{EPERM, "EPERM"},   {EACCES, "EACCES"},  {ENOENT, "ENOENT"},
                                                           {EINVAL, "EINVAL"}, {ENODEV, "ENODEV"},  {ENOSYS, "ENOSYS"},
                                                           {ENOSPC, "ENOSPC"}, {EUSERS, "EUSERS"},  {EBUSY, "EBUSY"},
                                                           {ELOOP, "ELOOP"},   {ENOTDIR, "ENOTDIR"}};
  const int error = errno;
  const auto* const found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& name) { return name.first == error; });
  return call + ": " + (found != std::end(kNames) ? found->second : "errno " + std::to_string(error));
}

bool write_text(const std::string& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool done = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return done;
}

// The user and the group are who they were. A kernel that refuses these leaves "nobody", which may still mount.
void map_ids(uid_t user, gid_t group) {
  const std::string u = std::to_string(user), g = std::to_string(group);
  if (write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", u + " " + u + " 1"))
    write_text("/proc/self/gid_map", g + " " + g + " 1");
}

bool is_below(const std::string& path, const std::string& directory) {
  if (path == directory || directory == "/") return true;
  return path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/';
}

// Kernels from 5.11 on overlay in a user namespace with userxattr; older ones that do so at all do not know the word.
bool overlay(const Overlay& it) {
  const std::string options = "lowerdir=" + it.directory + ",upperdir=" + it.upper + ",workdir=" + it.work;
  for (const char* more : {",userxattr", ""}) {
    if (mount("overlay", it.directory.c_str(), "overlay", 0, (options + more).c_str()) == 0) return true;
  }
  return false;
}

class OpenDirectory {
 public:
  explicit OpenDirectory(const std::string& path)
      : path_(path), number_(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {}
  OpenDirectory(OpenDirectory&& other) noexcept
      : path_(std::move(other.path_)), number_(std::exchange(other.number_, -1)) {}
  OpenDirectory& operator=(OpenDirectory&&) = delete;
  ~OpenDirectory() {
    if (number_ >= 0) close(number_);
  }
  const std::string& path() const { return path_; }
  // As it was when it was opened, whatever is mounted over it now.
  bool bind() const {
    const std::string from = "/proc/self/fd/" + std::to_string(number_);
    return number_ >= 0 && mount(from.c_str(), path_.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
  }

 private:
  std::string path_;
  int number_;
};

}  // namespace

Overlaid overlay_directories(const std::vector<Overlay>& overlays, const std::vector<std::string>& stay) {
  Overlaid done;
  const auto failed = [&](const std::string& call) {
    if (done.why.empty()) done.why = failure(call);
  };
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) {
    failed("unshare");
    return done;
  }
  map_ids(user, group);
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) failed("mount /");
  std::vector<OpenDirectory> opened;
  for (const std::string& directory : stay) opened.emplace_back(directory);
  for (const Overlay& it : overlays) {
    errno = EINVAL;
    const bool is_option = it.directory.find_first_of(",:") != std::string::npos;  // they mean something to overlayfs
    if (!is_option && overlay(it))
      done.directories.push_back(it.directory);
    else
      failed("mount " + it.directory);
  }
  for (const OpenDirectory& it : opened) {
    const bool is_hidden = std::any_of(done.directories.begin(), done.directories.end(),
                                       [&](const std::string& directory) { return is_below(it.path(), directory); });
    if (is_hidden && !it.bind()) failed("mount " + it.path());
  }
  return done;
}

double birth_time(const std::string& path) {
  struct statx answer {};
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BTIME, &answer) != 0) return 0;
  if ((answer.stx_mask & STATX_BTIME) == 0) return 0;
  return static_cast<double>(answer.stx_btime.tv_sec) + static_cast<double>(answer.stx_btime.tv_nsec) / 1e9;
}

}  // namespace finitude::base
