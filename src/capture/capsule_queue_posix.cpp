#include "capture/capsule_queue_posix.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "base/background_posix.h"
#include "capture/capsule_folder_posix.h"

namespace finitude::capture {
namespace {

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
    base::background_thread([this] { work(); }).detach();
  } catch (...) {
    working_ = false;
    held_bytes_ = 0;
    waiting_.clear();
    throw;
  }
  return true;
}

void CapsuleQueue::work() noexcept {
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
