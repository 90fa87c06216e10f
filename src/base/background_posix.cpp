#include "base/background_posix.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

namespace finitude::base {
namespace {

constexpr int kNicer = 5;  // than the threads that train, where processors are short

// On every processor that a thread of this process runs on, nicer than they are. A thread that was bound to one of
// them, as OpenMP may have bound the one that trains, begins its own on that same one.
void stand_back() {
#ifdef __linux__
  cpu_set_t all;
  CPU_ZERO(&all);
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    cpu_set_t one;
    if (sched_getaffinity(static_cast<pid_t>(std::atoi(it->path().filename().c_str())), sizeof one, &one) == 0)
      CPU_OR(&all, &all, &one);
  }
  if (CPU_COUNT(&all) != 0) sched_setaffinity(0, sizeof all, &all);
  const auto self = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + kNicer);
#endif
}

}  // namespace

std::thread background_thread(std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::exception_ptr failed;
  try {
    thread = std::thread([work = std::move(work)] {
      try {
        stand_back();
      } catch (...) {  // then it is where it is
      }
      work();
    });
  } catch (...) {
    failed = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) std::rethrow_exception(failed);
  return thread;
}

}  // namespace finitude::base
