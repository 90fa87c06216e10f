// Capsules that are written beside the program: by one thread of Finitude, one after the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "capture/capsule.h"
#include "capture/capsule_folder_posix.h"

namespace finitude::capture {

struct CapsuleJob {
  std::string folder;
  CapsuleDraft draft;                                    // let go of its start
  std::string replayed = "not tried";                    // how a replay came out before
  std::function<std::string(const std::string&)> tried;  // CapsuleHooks::tried
  std::string runs;        // what others left behind below it is settled; empty: nothing is
  std::uint32_t keep = 0;  // so many capsules stay in its folder; 0: all
};

struct CapsuleDone {
  std::string folder, why_not, replayed;
  CapsuleTimes times;
  double replay_seconds = 0;
  std::vector<LeftBehind> left_behind;  // by others, and settled
};

// Any thread may call it. The thread of its own is there as long as there is something to write, takes no signal, and
// is nicer than the program's. A forked process has a queue of its own, which is empty.
class CapsuleQueue {
 public:
  static CapsuleQueue& get();

  // Waits while those before it hold so much memory that with this one it would be more than most_bytes. interrupted:
  // asked ten times a second meanwhile, without a lock; true ends the wait, and this one is not written. False then.
  // Throws where no thread can be had; then nothing is under way.
  bool add(CapsuleJob job, std::uint64_t most_bytes, const std::function<bool()>& interrupted = {});
  // What has come of those whose folder is one of these, since it was asked last; all of them without.
  std::vector<CapsuleDone> take_done(const std::function<bool(const std::string& folder)>& mine = {});
  // At most so long. True: nothing is under way any more.
  bool wait(double seconds);
  // What is not finished is not to be: it ends soon, and nothing of it stays.
  void give_up();
  const std::atomic<bool>& given_up() const { return given_up_; }

 private:
  explicit CapsuleQueue(int process) : process_(process) {}
  void work() noexcept;
  CapsuleDone write(CapsuleJob job) noexcept;

  const int process_;
  std::atomic<bool> given_up_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<CapsuleJob> waiting_;
  std::vector<CapsuleDone> done_;
  std::uint64_t held_bytes_ = 0;  // by those that wait and the one that is written
  bool working_ = false;
};

}  // namespace finitude::capture
