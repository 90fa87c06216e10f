#include "capture/capsule_queue_posix.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "capture/capsule_folder_posix.h"

namespace finitude::capture {
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

std::atomic<CapsuleQueue*> of_this_process = nullptr;

}  // namespace

CapsuleQueue& CapsuleQueue::get() {
  CapsuleQueue* queue = of_this_process.load();
  const int process = getpid();
  while (queue == nullptr || queue->process_ != process) {
    auto* const mine =
        new CapsuleQueue(process);  // never destroyed: its thread may outlast main. Its parent's is left as it is
    if (of_this_process.compare_exchange_strong(queue, mine)) return *mine;
    delete mine;
  }
  return *queue;
}

bool CapsuleQueue::add(CapsuleJob job, std::uint64_t most_bytes, const std::function<bool()>& interrupted) {
  const std::uint64_t bytes = job.draft.bytes();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_room = [&] { return held_bytes_ == 0 || held_bytes_ + bytes <= most_bytes; };
  while (interrupted && !changed_.wait_for(lock, std::chrono::milliseconds(100), has_room)) {
    lock.unlock();
    if (interrupted()) return false;
    lock.lock();
  }
  changed_.wait(lock, has_room);
  waiting_.push_back(std::move(job));
  held_bytes_ += bytes;
  if (working_) return true;
  given_up_ = false;
  working_ = true;
  try {
    begin_thread();
  } catch (...) {
    working_ = false;
    held_bytes_ = 0;
    waiting_.clear();
    throw;
  }
  return true;
}

void CapsuleQueue::begin_thread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::exception_ptr failed;
  try {
    std::thread([this] { work(); }).detach();
  } catch (...) {
    failed = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) std::rethrow_exception(failed);
}

void CapsuleQueue::work() noexcept {
  try {
    stand_back();
  } catch (...) {  // then it is where it is
  }
  std::unique_lock<std::mutex> lock(mutex_);
  while (!waiting_.empty()) {
    CapsuleJob job = std::move(waiting_.front());
    waiting_.pop_front();
    const std::uint64_t bytes = job.draft.bytes();
    lock.unlock();
    CapsuleDone done = write(std::move(job));
    lock.lock();
    done_.push_back(std::move(done));
    held_bytes_ -= bytes;
    changed_.notify_all();
  }
  working_ = false;
  changed_.notify_all();
}

CapsuleDone CapsuleQueue::write(CapsuleJob job) noexcept {
  CapsuleDone done;
  done.folder = job.folder;
  done.replayed = job.replayed;
  try {
    CapsuleHooks hooks;
    hooks.cancelled = &given_up_;
    hooks.trains_on = true;
    if (job.tried) {
      hooks.tried = [&](const std::string& folder) {
        const auto began = std::chrono::steady_clock::now();
        done.replayed = job.tried(folder);
        done.replay_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        return done.replayed;
      };
    }
    done.why_not =
        given_up_ ? "was given up" : write_capsule(job.folder, std::move(job.draft), hooks, &done.times).why();
    const std::string parent = std::filesystem::path(job.folder).parent_path().string();
    if (done.why_not.empty() && job.keep != 0) keep_newest(parent, job.keep, job.folder);
    if (!given_up_) done.left_behind = settle_left_behind(job.runs, is_whole_capsule);
  } catch (const std::exception& e) {
    done.why_not = std::string("cannot be written: ") + e.what();
  } catch (...) {
    done.why_not = "cannot be written";
  }
  return done;
}

std::vector<CapsuleDone> CapsuleQueue::take_done(const std::function<bool(const std::string&)>& mine) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!mine) return std::exchange(done_, {});
  std::vector<CapsuleDone> taken;
  const auto others =
      std::stable_partition(done_.begin(), done_.end(), [&](const CapsuleDone& done) { return !mine(done.folder); });
  std::move(others, done_.end(), std::back_inserter(taken));
  done_.erase(others, done_.end());
  return taken;
}

bool CapsuleQueue::wait(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !working_; });
}

void CapsuleQueue::give_up() { given_up_ = true; }

}  // namespace finitude::capture
