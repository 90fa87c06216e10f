#include "capture/checked_file_posix.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "base/checksum.h"

namespace finitude::capture {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWrittenAtOnce = std::size_t{4} << 20;  // bytes given to the system at once
constexpr std::size_t kReadBack = std::size_t{1}
                                  << 18;  // bytes read back at once: they stay in the cache of the processor
constexpr std::uint64_t kAlone = std::uint64_t{4} << 20;  // a smaller file is not worth a second thread
constexpr std::uint64_t kOver = ~std::uint64_t{0};

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : number_(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  bool closed() {  // false: what was written has not all arrived
    const int number = number_;
    number_ = -1;
    return close(number) == 0;
  }

 private:
  int number_;
};

Status failed(int error) {
  return Status(StatusCode::kUnwritable,
                "cannot be written" + (error != 0 ? std::string(": ") + std::strerror(error) : std::string()));
}

// 0, or errno.
int write_all(int descriptor, const char* data, std::size_t size) {
  while (size != 0) {
    const ssize_t written = write(descriptor, data, std::min(size, kWrittenAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return 0;
}

// Reads back what has been written so far and holds it against what was to be written.
class ReadBack {
 public:
  ReadBack(int descriptor, const std::vector<std::string_view>& parts)
      : descriptor_(descriptor), parts_(parts), piece_(std::make_unique_for_overwrite<char[]>(kReadBack)) {}

  // Ends early where it is asked to. Never throws. False: something else came back.
  bool up_to(std::uint64_t end, const std::atomic<bool>& stop) noexcept {
    while (same_ && at_ < end && part_ < parts_.size() && !stop) {
      const std::string_view part = parts_[part_];
      if (in_part_ == part.size()) {
        ++part_;
        in_part_ = 0;
        continue;
      }
      const auto wanted =
          static_cast<std::size_t>(std::min<std::uint64_t>({kReadBack, part.size() - in_part_, end - at_}));
      const ssize_t got = pread(descriptor_, piece_.get(), wanted, static_cast<off_t>(at_));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || std::memcmp(piece_.get(), part.data() + in_part_, static_cast<std::size_t>(got)) != 0)
        same_ = false;
      if (!same_) break;
      sum_.add(piece_.get(), static_cast<std::size_t>(got));
      at_ += static_cast<std::uint64_t>(got);
      in_part_ += static_cast<std::size_t>(got);
    }
    return same_;
  }
  bool same() const { return same_; }
  std::uint64_t checksum() const { return sum_.sum(); }

 private:
  const int descriptor_;
  const std::vector<std::string_view>& parts_;
  const std::unique_ptr<char[]> piece_;
  base::Checksum sum_;
  std::size_t part_ = 0, in_part_ = 0;
  std::uint64_t at_ = 0;
  bool same_ = true;
};

// Runs where a processor has nothing else to do: beside it a thread gets what is left, and never takes the half of one
// from the writer.
void run_on_what_is_left() {
#ifdef __linux__
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
#endif
}

// The second thread: goes after the first one, which says how far it is.
class Follower {
 public:
  explicit Follower(ReadBack* reader) : reader_(reader) {
    // Signals are for the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] {
        run_on_what_is_left();
        for (std::uint64_t done = 0, end = 0; done != kOver; done = end) {
          written_.wait(done);
          end = written_.load();
          if (end != kOver && !reader_->up_to(end, over_)) return;
        }
      });
    } catch (const std::system_error&) {  // no more threads: it is read back afterwards
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Follower() { join(); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  void come_to(std::uint64_t written) {
    if (!thread_.joinable()) return;
    written_.store(written);
    written_.notify_one();
  }
  void join() {
    if (!thread_.joinable()) return;
    over_ = true;
    come_to(kOver);
    thread_.join();
  }

 private:
  ReadBack* const reader_;
  std::atomic<std::uint64_t> written_ = 0;
  std::atomic<bool> over_ = false;  // the first thread continues alone
  std::thread thread_;
};

}  // namespace

Status write_checked(const std::string& path, const std::vector<std::string_view>& parts,
                     const std::atomic<bool>* cancelled, CheckedFile* file, ReadBackBy by) {
  *file = {};
  std::uint64_t size = 0;
  for (const std::string_view part : parts) size += part.size();
  Descriptor descriptor(path);
  if (descriptor.number() < 0) return failed(errno);
  ReadBack reader(descriptor.number(), parts);
  Clock::time_point written;
  const auto began = Clock::now();
  {
    std::unique_ptr<Follower> follower;
    if (by == ReadBackBy::kAnotherThread && size > kAlone && std::thread::hardware_concurrency() > 1)
      follower = std::make_unique<Follower>(&reader);
    for (const std::string_view part : parts) {
      for (std::size_t at = 0; at < part.size(); at += kWrittenAtOnce) {
        if (cancelled != nullptr && *cancelled) return Status(StatusCode::kStopped, "was given up");
        const std::size_t now = std::min(kWrittenAtOnce, part.size() - at);
        if (const int error = write_all(descriptor.number(), part.data() + at, now); error != 0) return failed(error);
        file->bytes += now;
        if (follower) follower->come_to(file->bytes);
      }
    }
    written = Clock::now();
  }
  if (!reader.up_to(file->bytes, std::atomic<bool>(false)))
    return Status(StatusCode::kUnwritable, "cannot be written: what was read back is something else");
  file->checksum = reader.checksum();
  const bool arrived = descriptor.closed();
  if (!arrived) return failed(errno);
  file->write_seconds = std::chrono::duration<double>(written - began).count();
  file->check_seconds = std::chrono::duration<double>(Clock::now() - written).count();
  return {};
}

}  // namespace finitude::capture
