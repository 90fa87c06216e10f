// Keeps store.sqlite of a run while it trains. The thread that trains copies a row; a thread of the writer's does all
// else. That thread calls no Python and takes no lock that the one that trains holds.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "finitude/status.h"
#include "store/database.h"
#include "store/step_queue.h"

namespace finitude::store {

inline constexpr std::size_t kQueueBytes = std::size_t{2} << 20;

class Writer {
 public:
  // Replaces the file of that name. Begins the thread.
  static Status open(const std::string& path, const std::map<std::string, std::string>& info,
                     std::unique_ptr<Writer>* writer);
  // Closes. In another process it must not be destroyed: see let_go.
  ~Writer() { (void)close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Before the first row of that optimizer. Any thread.
  void name(std::uint32_t optimizer, OptimizerNames names);
  // Before the first row of a micro-batch of it. Any thread.
  void name(DatasetName dataset);
  // By one thread at a time: a copy, without a lock, an allocation or a system call. On disk after half a second, where
  // a commit takes less than 25 ms.
  void push(const StepRow& row) noexcept { (void)queue_.push(row); }
  // Everything is on disk, and the thread is over; later rows are let go of. What could not be written, and why. In
  // another process than that which opened it nothing is done.
  Status close();

  bool is_of_this_process() const noexcept;

  // In the child of a fork: the thread is not there, and the file is the parent's. Leaks what the parent has.
  static void let_go(std::unique_ptr<Writer> of_parent) noexcept { (void)of_parent.release(); }

 private:
  explicit Writer(std::unique_ptr<Database> database);
  void work() noexcept;
  void take_names();
  void take_rows();

  StepQueue queue_{kQueueBytes};
  std::unique_ptr<Database> database_;
  double clock_offset_;  // Unix seconds when the monotonic clock was 0
  std::mutex mutex_;     // of what follows
  std::condition_variable ends_;
  std::vector<std::pair<std::uint32_t, OptimizerNames>> names_;
  std::vector<DatasetName> datasets_;
  bool ending_ = false;
  Status status_;
  std::thread thread_;
  const int process_;
};

}  // namespace finitude::store
