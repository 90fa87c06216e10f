#include "store/writer_posix.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/background_posix.h"

namespace finitude::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100}, kCommit{500};
constexpr int kShare = 20;  // at most so much of the time is spent in commits: 1/20

double seconds(auto since_epoch) { return std::chrono::duration<double>(since_epoch).count(); }

}  // namespace

Status Writer::open(const std::string& path, const std::map<std::string, std::string>& info,
                    std::unique_ptr<Writer>* writer) {
  std::unique_ptr<Database> database;
  if (Status status = Database::make(path, info, &database); !status.ok()) return status;
  std::unique_ptr<Writer> made(new Writer(std::move(database)));
  try {
    made->thread_ = base::background_thread([self = made.get()] { self->work(); });
  } catch (const std::exception& e) {
    return {StatusCode::kUnwritable, e.what()};
  }
  *writer = std::move(made);
  return {};
}

Writer::Writer(std::unique_ptr<Database> database)
    : database_(std::move(database)),
      clock_offset_(seconds(std::chrono::system_clock::now().time_since_epoch()) -
                    seconds(Clock::now().time_since_epoch())),
      process_(::getpid()) {}

void Writer::name(std::uint32_t optimizer, OptimizerNames names) {
  const std::lock_guard<std::mutex> lock(mutex_);
  names_.emplace_back(optimizer, std::move(names));
}

void Writer::name(DatasetName dataset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  datasets_.push_back(std::move(dataset));
}

void Writer::take_names() {
  std::vector<std::pair<std::uint32_t, OptimizerNames>> names;
  std::vector<DatasetName> datasets;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    names.swap(names_);
    datasets.swap(datasets_);
  }
  for (DatasetName& dataset : datasets) database_->name(std::move(dataset));
  for (auto& [optimizer, of_it] : names) database_->name(optimizer, std::move(of_it));
}

void Writer::take_rows() {
  StepRow row;
  StepMemory memory;
  take_names();
  while (!database_->must_commit() && queue_.pop(&row, &memory)) {
    if (!database_->knows(row.optimizer)) take_names();  // they came before the row
    database_->add(row, clock_offset_ + static_cast<double>(row.time_ns) * 1e-9);
  }
}

void Writer::work() noexcept {
  Status status;
  try {
    auto next = Clock::now() + kCommit;
    bool ending = false;
    while (!ending && status.ok()) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        ending = ends_.wait_for(lock, kLook, [&] { return ending_; });
      }
      do {
        take_rows();
        const auto began = Clock::now();
        if (!ending && began < next && !database_->must_commit()) break;
        status = database_->commit();
        const auto ended = Clock::now();
        next = ended + std::max<Clock::duration>(kCommit, kShare * (ended - began));
      } while (status.ok() && ending && !queue_.is_empty() && !database_->must_commit());
    }
    if (status.ok()) status = database_->close(queue_.left_out());
  } catch (const std::exception& e) {
    status = Status(StatusCode::kUnwritable, e.what());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = std::move(status);
}

bool Writer::is_of_this_process() const noexcept { return process_ == ::getpid(); }

Status Writer::close() {
  if (!is_of_this_process() || !thread_.joinable()) return {};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
  database_.reset();
  return status_;
}

}  // namespace finitude::store
