#include "base/pinned_core_posix.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

namespace finitude::base {
namespace {

// Numbers of the threads of this process, ascending; empty where /proc is not mounted.
std::vector<pid_t> threads() {
  std::vector<pid_t> found;
  DIR* const folder = opendir("/proc/self/task");
  if (folder == nullptr) return found;
  while (const dirent* const one = readdir(folder)) {
    if (const long number = std::strtol(one->d_name, nullptr, 10); number > 0)
      found.push_back(static_cast<pid_t>(number));
  }
  closedir(folder);
  std::ranges::sort(found);
  return found;
}

cpu_set_t alone(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  return cores;
}

}  // namespace

struct PinnedCore::Before {
  int core = -1;
  cpu_set_t cores{};
  std::vector<pid_t> threads;
};

std::vector<int> allowed_cores() {
  cpu_set_t cores;
  std::vector<int> found;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return found;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &cores)) found.push_back(core);
  }
  return found;
}

bool stay_on_core(int core) noexcept {
  if (core < 0 || core >= CPU_SETSIZE) return false;
  const cpu_set_t only = alone(core);
  return sched_setaffinity(0, sizeof(only), &only) == 0;
}

int current_core() noexcept { return sched_getcpu(); }

PinnedCore::PinnedCore(int core) {
  if (core < 0 || core >= CPU_SETSIZE) return;
  auto before = std::make_unique<Before>();
  before->core = core;
  if (sched_getaffinity(0, sizeof(before->cores), &before->cores) != 0) return;
  if (!CPU_ISSET(static_cast<std::size_t>(core), &before->cores)) return;
  before->threads = threads();
  if (stay_on_core(core)) before_ = std::move(before);
}

PinnedCore::~PinnedCore() {
  if (before_ == nullptr) return;
  sched_setaffinity(0, sizeof(before_->cores), &before_->cores);
  if (before_->threads.empty()) return;
  const cpu_set_t only = alone(before_->core);
  for (const pid_t thread : threads()) {
    cpu_set_t cores;
    if (std::ranges::binary_search(before_->threads, thread)) continue;
    if (sched_getaffinity(thread, sizeof(cores), &cores) == 0 && CPU_EQUAL(&cores, &only))
      sched_setaffinity(thread, sizeof(before_->cores), &before_->cores);
  }
}

}  // namespace finitude::base
