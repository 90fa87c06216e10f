// store.sqlite: the series of one process in a SQLite file that any tool reads while it is written. docs/store.md has
// its schema. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "finitude/status.h"
#include "store/batch_rows.h"
#include "store/series.h"
#include "store/step_queue.h"

struct sqlite3;
struct sqlite3_stmt;

namespace finitude::store {

inline constexpr int kSchemaVersion = 1;
inline constexpr std::size_t kMostParameters = 20'000;  // of an optimizer; those after them have no series
inline constexpr std::size_t kMostOptimizers = 64;
inline constexpr std::size_t kMostWaiting = std::size_t{1} << 16;       // points in memory, about
inline constexpr std::size_t kMostWaitingBytes = std::size_t{8} << 20;  // of ids of rows
// Rows of micro-batches in the file; the oldest go, but for those of steps with an event, of which there are so many.
inline constexpr std::size_t kMostBatches = 100'000, kMostBatchBytes = std::size_t{32} << 20, kMostEvents = 10'000;
// A point covers at least this much. The number of steps of a parameter's point bounds the bytes per step.
inline constexpr Interval kOfOptimizer{1, 0.05, 256}, kOfParameter{32, 1.0}, kOfPart{128, 4.0};

// A tensor that the program named has rows as an optimizer has; their gradient_absmax is its largest magnitude.
inline constexpr std::uint32_t kFirstTensor = 1u << 31, kMostTensors = 32;

struct OptimizerNames {
  std::string class_name;                    // or the name of a tensor
  std::vector<std::string> parameters = {};  // in order; those of parameters that are added later are their numbers
  std::vector<std::string> dtypes = {};      // of the parameters, as torch names them ("float32"); may be shorter
  bool is_tensor = false;
};

struct DatasetName {
  std::uint32_t number = 0;
  std::string class_name;
  std::int64_t length = -1;  // negative: not known
};

class Database {
 public:
  // Replaces a file of that name. info: rows of the table of that name.
  static Status make(const std::string& path, const std::map<std::string, std::string>& info,
                     std::unique_ptr<Database>* database);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  bool knows(std::uint32_t optimizer) const { return optimizers_.contains(optimizer); }
  // Before its first row.
  void name(std::uint32_t optimizer, OptimizerNames names);
  // Before the first row of a micro-batch of it.
  void name(DatasetName dataset) { datasets_.push_back(std::move(dataset)); }
  // Into memory. time: Unix seconds.
  void add(const StepRow& row, double time);
  bool must_commit() const noexcept {
    return waiting_.size() + batches_.size() >= kMostWaiting || waiting_bytes_ >= kMostWaitingBytes;
  }
  // All that was added is in the file, or a reader holds it up (5 s) and all stays in memory. A failure is final.
  Status commit();
  // Commits; the log is merged into the file.
  Status close(std::uint64_t rows_left_out);

 private:
  struct Kept {
    Series series;
    const char* quantity;
    std::int64_t id = 0;       // 0: it has had no value yet
    bool is_changed = false;   // its open point, since the last commit
    bool is_new = false;       // it has no row in the table of series
    std::int64_t written = 0;  // points in the file, about
    std::uint32_t optimizer = 0;
    std::int64_t parameter = -1;
  };
  struct Optimizer {
    std::string name;
    std::vector<std::string> parameters, dtypes;
    std::vector<Kept> whole, rates, gradients, weights, norms;
    std::array<std::vector<Kept>, kParts> parts;
    double last_time = 0;
    bool has_stepped = false;
  };
  struct Close {
    void operator()(sqlite3* db) const noexcept;
    void operator()(sqlite3_stmt* statement) const noexcept;
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Close>;

  // A micro-batch on its way into the file; or, without a count, the event of a step whose batches are there.
  struct Batch {
    std::uint32_t optimizer = 0;
    std::uint64_t step = 0;
    std::uint32_t micro_batch = 0;
    BatchRows rows;
    std::vector<std::byte> ids;
    bool is_applied = true;
    StepEvent event = StepEvent::kNone;
  };
  // What may be removed: micro-batches of one step, without an event.
  struct Old {
    std::uint32_t optimizer = 0;
    std::uint64_t step = 0;
    std::size_t batches = 0, size_bytes = 0;
  };

  Database() = default;
  bool prepare(const char* sql, Statement* statement);
  bool execute(const char* sql);
  bool put_info(const std::string& key, const std::string& value);
  void add_value(Kept& kept, std::uint64_t step, double time, double value);
  void add_point(Kept& kept, const Point& one);
  void add_values(std::vector<Kept>& all, const char* quantity, const StepRow& row, double time,
                  std::span<const float> values, Interval interval = kOfParameter);
  void add_rates(Optimizer& optimizer, const StepRow& row, double time);
  bool put_series(Kept& kept);
  bool put_point(std::int64_t series, const Point& point);
  bool make_coarser(Kept& kept);
  void add_batches(const StepRow& row);
  bool put_batch(const Batch& batch);
  bool put_batches();
  bool write_all();
  template <typename Do>
  bool for_each_series(const Do& each);
  Status failure() const;

  std::unique_ptr<sqlite3, Close> db_;
  Statement insert_info_, insert_series_, insert_point_, select_points_, delete_points_;
  Statement insert_dataset_, insert_batch_, mark_batch_, delete_batch_;
  std::map<std::uint32_t, Optimizer> optimizers_;
  std::map<std::string, int> classes_;  // how many optimizers of each
  std::vector<std::pair<std::int64_t, Point>> waiting_;
  std::vector<DatasetName> datasets_;
  std::vector<Batch> batches_;  // not in the file yet
  std::size_t waiting_bytes_ = 0;
  std::deque<Old> kept_;  // in the file, the oldest first
  std::size_t kept_batches_ = 0, kept_bytes_ = 0, events_ = 0;
  std::int64_t next_id_ = 1;
};

}  // namespace finitude::store
