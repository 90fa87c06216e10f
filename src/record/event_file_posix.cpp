#include "record/event_file_posix.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace finitude::record {

std::string EventFile::failed(int number) {
  is_off_ = true;
  return std::strerror(number);
}

bool EventFile::open(const std::function<std::string()>& folder) {
  descriptor_ = -1;  // that of a process that forked this one is left to it
  process_ = getpid();
  const std::string path = folder();
  if (path.empty() || descriptor_ >= 0) return true;  // `folder` has written a line itself
  descriptor_ = ::open((path + "/events.jsonl").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat found = {};
  if (descriptor_ < 0 || fstat(descriptor_, &found) != 0) return false;
  size_bytes_ = static_cast<std::uint64_t>(found.st_size);
  return true;
}

std::string EventFile::append(std::string_view line, const std::function<std::string()>& folder) {
  if (is_off_) return {};
  if ((descriptor_ < 0 || process_ != getpid()) && !open(folder)) return failed(errno);
  if (descriptor_ < 0 || size_bytes_ + line.size() > kMostBytes) {
    is_off_ = true;
    return {};
  }
  ssize_t written = 0;
  do written = ::write(descriptor_, line.data(), line.size());
  while (written < 0 && errno == EINTR);
  if (written < 0) return failed(errno);
  size_bytes_ += static_cast<std::uint64_t>(written);
  return {};
}

void EventFile::close() noexcept {
  is_off_ = true;
  if (const int open = std::exchange(descriptor_, -1); open >= 0 && process_ == getpid()) ::close(open);
}

}  // namespace finitude::record
