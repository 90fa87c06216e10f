#include "store/database.h"

#include <sqlite3.h>

#include <cmath>
#include <filesystem>

namespace finitude::store {
namespace {

constexpr const char* kSchema = R"(
CREATE TABLE info(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE series(id INTEGER PRIMARY KEY, quantity TEXT NOT NULL, optimizer TEXT, parameter TEXT,
                    dtype TEXT);
CREATE TABLE point(series INTEGER, step INTEGER, last_step INTEGER, time REAL,
                   first REAL, last REAL, min REAL, max REAL,
                   PRIMARY KEY(series, step)) WITHOUT ROWID;
CREATE TABLE dataset(id INTEGER PRIMARY KEY, class TEXT, length INTEGER);
CREATE TABLE batch(optimizer TEXT, step INTEGER, micro_batch INTEGER, dataset INTEGER, epoch INTEGER,
                   worker INTEGER, applied INTEGER, event TEXT, count INTEGER, ids BLOB,
                   PRIMARY KEY(optimizer, step, micro_batch)) WITHOUT ROWID;
PRAGMA user_version = 1;
)";
static_assert(kSchemaVersion == 1);
constexpr const char* kQuantityNames[] = {"loss",       "gradient_norm", "gradient_absmax", "learning_rate",
                                          "loss_scale", "step_seconds",  "logits_absmax",   "attention_absmax"};
// Of the parameter groups after the first.
constexpr const char* kRateNames[] = {"learning_rate_2", "learning_rate_3", "learning_rate_4", "learning_rate_5",
                                      "learning_rate_6", "learning_rate_7", "learning_rate_8"};
static_assert(std::size(kRateNames) == kMostGroups - 1);
constexpr const char* kOfTensor = "tensor_absmax";
constexpr const char* kEventNames[] = {nullptr, "warning", "spike", "alarm"};  // by StepEvent
constexpr int kBusyMs = 5000;

void bind(sqlite3_stmt* statement, int at, double value) {
  if (std::isnan(value))
    sqlite3_bind_null(statement, at);
  else
    sqlite3_bind_double(statement, at, value);
}

void bind(sqlite3_stmt* statement, int at, const std::string& text) {
  sqlite3_bind_text(statement, at, text.c_str(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
}

// A statement without rows.
bool run(sqlite3_stmt* statement) {
  const int code = sqlite3_step(statement);
  sqlite3_reset(statement);
  return code == SQLITE_DONE;
}

double real_of(sqlite3_stmt* statement, int column) {
  return sqlite3_column_type(statement, column) == SQLITE_NULL ? std::numeric_limits<double>::quiet_NaN()
                                                               : sqlite3_column_double(statement, column);
}

}  // namespace

void Database::Close::operator()(sqlite3* db) const noexcept { sqlite3_close_v2(db); }
void Database::Close::operator()(sqlite3_stmt* statement) const noexcept { sqlite3_finalize(statement); }

Database::~Database() = default;

Status Database::make(const std::string& path, const std::map<std::string, std::string>& info,
                      std::unique_ptr<Database>* database) {
  std::error_code error;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) std::filesystem::remove(path + suffix, error);
  std::unique_ptr<Database> made(new Database);
  sqlite3* db = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  made->db_.reset(db);
  if (code != SQLITE_OK) return Status(StatusCode::kUnwritable, db ? sqlite3_errmsg(db) : "no memory");
  sqlite3_busy_timeout(db, kBusyMs);
  // NORMAL: what is committed survives the process; the system's crash may cost the last commits, never the file.
  bool ok = made->execute("PRAGMA journal_mode = WAL") && made->execute("PRAGMA synchronous = NORMAL") &&
            made->execute("PRAGMA journal_size_limit = 8388608") && made->execute("PRAGMA temp_store = MEMORY") &&
            made->execute("BEGIN IMMEDIATE") && made->execute(kSchema);
  ok = ok && made->prepare("INSERT OR REPLACE INTO info VALUES(?, ?)", &made->insert_info_) &&
       made->prepare("INSERT INTO series VALUES(?, ?, ?, ?, ?)", &made->insert_series_) &&
       made->prepare("INSERT OR REPLACE INTO point VALUES(?, ?, ?, ?, ?, ?, ?, ?)", &made->insert_point_) &&
       made->prepare(
           "SELECT step, last_step, time, first, last, min, max FROM point WHERE series = ? AND step < ? "
           "ORDER BY step",
           &made->select_points_) &&
       made->prepare("DELETE FROM point WHERE series = ? AND step < ?", &made->delete_points_);
  ok = ok && made->prepare("INSERT OR REPLACE INTO dataset VALUES(?, ?, ?)", &made->insert_dataset_) &&
       made->prepare(
           "INSERT INTO batch VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(optimizer, step, micro_batch) "
           "DO UPDATE SET applied = max(applied, excluded.applied), event = coalesce(excluded.event, event)",
           &made->insert_batch_) &&
       made->prepare(
           // A warning of the same step does not hide a spike, nor anything an alarm.
           "UPDATE batch SET event = ?1 WHERE optimizer = ?2 AND step = ?3 AND (event IS NULL OR event = 'warning' OR "
           "?1 = 'alarm')",
           &made->mark_batch_) &&
       made->prepare("DELETE FROM batch WHERE optimizer = ? AND step = ? AND event IS NULL", &made->delete_batch_);
  for (const auto& [key, value] : info) ok = ok && made->put_info(key, value);
  if (!ok || !made->execute("COMMIT")) return made->failure();
  *database = std::move(made);
  return {};
}

bool Database::execute(const char* sql) { return sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK; }

bool Database::prepare(const char* sql, Statement* statement) {
  sqlite3_stmt* made = nullptr;
  const int code = sqlite3_prepare_v3(db_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &made, nullptr);
  statement->reset(made);
  return code == SQLITE_OK;
}

Status Database::failure() const { return {StatusCode::kUnwritable, sqlite3_errmsg(db_.get())}; }

bool Database::put_info(const std::string& key, const std::string& value) {
  bind(insert_info_.get(), 1, key);
  bind(insert_info_.get(), 2, value);
  return run(insert_info_.get());
}

void Database::name(std::uint32_t optimizer, OptimizerNames names) {
  if (knows(optimizer) || optimizers_.size() >= kMostOptimizers) return;
  Optimizer& made = optimizers_[optimizer];
  const int number = ++classes_[names.class_name];
  made.name = names.class_name + (number == 1 ? "" : " (" + std::to_string(number) + ")");
  made.parameters = std::move(names.parameters);
  made.dtypes = std::move(names.dtypes);
  if (names.is_tensor) {
    made.whole.push_back({.series = Series(kOfOptimizer), .quantity = kOfTensor, .optimizer = optimizer});
    return;
  }
  for (const char* quantity : kQuantityNames)
    made.whole.push_back({.series = Series(kOfOptimizer), .quantity = quantity, .optimizer = optimizer});
}

void Database::add_value(Kept& kept, std::uint64_t step, double time, double value) {
  if (kept.id == 0 && std::isnan(value)) return;
  Point one;
  one.step = step;
  one.add(step, time, value);
  add_point(kept, one);
}

void Database::add_point(Kept& kept, const Point& one) {
  if (kept.id == 0) {
    kept.id = next_id_++;
    kept.is_new = true;
  }
  Point whole;
  if (kept.series.add(one, &whole)) waiting_.emplace_back(kept.id, whole), ++kept.written;
  kept.is_changed = true;
}

void Database::add_values(std::vector<Kept>& all, const char* quantity, const StepRow& row, double time,
                          std::span<const float> values, Interval interval) {
  values = values.first(std::min(values.size(), kMostParameters));
  while (all.size() < values.size()) {
    all.push_back({.series = Series(interval),
                   .quantity = quantity,
                   .optimizer = row.optimizer,
                   .parameter = static_cast<std::int64_t>(all.size())});
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(values[i] < 0)) add_value(all[i], row.step, time, static_cast<double>(values[i]));
}

void Database::add_rates(Optimizer& optimizer, const StepRow& row, double time) {
  const std::size_t count = std::min(row.more_rates.size(), std::size(kRateNames));
  while (optimizer.rates.size() < count)
    optimizer.rates.push_back(
        {.series = Series(kOfOptimizer), .quantity = kRateNames[optimizer.rates.size()], .optimizer = row.optimizer});
  for (std::size_t i = 0; i < count; ++i) add_value(optimizer.rates[i], row.step, time, row.more_rates[i]);
}

void Database::add(const StepRow& row, double time) {
  const auto found = optimizers_.find(row.optimizer);
  if (found == optimizers_.end()) return;
  add_batches(row);
  if (!row.is_applied) return;
  Optimizer& optimizer = found->second;
  if (row.optimizer >= kFirstTensor) return add_value(optimizer.whole.front(), row.step, time, row.gradient_absmax);
  const double seconds = optimizer.has_stepped ? time - optimizer.last_time : std::numeric_limits<double>::quiet_NaN();
  const double values[] = {row.loss,       row.gradient_norm, row.gradient_absmax, row.learning_rate,
                           row.loss_scale, seconds,           row.logits_absmax,   row.attention_absmax};
  if (!std::isnan(row.loss_first)) {  // several micro-batches; what comes below is dropped, as the step is there
    Point losses{.step = row.step};
    for (const double one : {row.loss_first, row.loss_min, row.loss_max, row.loss}) losses.add(row.step, time, one);
    add_point(optimizer.whole[0], losses);
  }
  for (std::size_t i = 0; i < std::size(values); ++i) add_value(optimizer.whole[i], row.step, time, values[i]);
  add_rates(optimizer, row, time);
  add_values(optimizer.gradients, "gradient_absmax", row, time, row.gradients);
  add_values(optimizer.weights, "weight_absmax", row, time, row.weights);
  add_values(optimizer.norms, "gradient_norm", row, time, row.norms);
  const std::size_t count = row.parts.size() / kParts;
  for (std::size_t i = 0; i < kParts; ++i)
    add_values(optimizer.parts[i], kPartNames[i], row, time, row.parts.subspan(i * count, count), kOfPart);
  optimizer.last_time = time;
  optimizer.has_stepped = true;
}

void Database::add_batches(const StepRow& row) {
  if (row.event != StepEvent::kNone && ++events_ > kMostEvents) return;
  std::span<const std::byte> bytes = row.batches;
  Batch batch{.optimizer = row.optimizer, .step = row.step, .is_applied = row.is_applied, .event = row.event};
  // The event first: a step that is known already is only marked, and one that is new has it of its own.
  if (row.event != StepEvent::kNone) batches_.push_back(batch);
  for (; RowsWriter::take(&bytes, &batch.rows); ++batch.micro_batch) {
    if (batch.rows.count == 0) continue;
    batch.ids.assign(batch.rows.ids.begin(), batch.rows.ids.end());
    batch.rows.ids = {};
    waiting_bytes_ += batch.ids.size();
    batches_.push_back(batch);
  }
}

bool Database::put_batch(const Batch& batch) {
  const std::string& optimizer = optimizers_[batch.optimizer].name;
  const auto step = static_cast<sqlite3_int64>(batch.step);
  const auto bind_event = [&](sqlite3_stmt* statement, int at) {
    sqlite3_bind_text(statement, at, kEventNames[static_cast<std::size_t>(batch.event)], -1, SQLITE_STATIC);
  };
  if (batch.rows.count == 0) {
    bind_event(mark_batch_.get(), 1);
    bind(mark_batch_.get(), 2, optimizer);
    sqlite3_bind_int64(mark_batch_.get(), 3, step);
    return run(mark_batch_.get());
  }
  sqlite3_stmt* const statement = insert_batch_.get();
  bind(statement, 1, optimizer);
  sqlite3_bind_int64(statement, 2, step);
  sqlite3_bind_int64(statement, 3, batch.micro_batch);
  sqlite3_bind_int64(statement, 4, batch.rows.dataset);
  sqlite3_bind_int64(statement, 5, batch.rows.epoch);
  if (batch.rows.worker < 0)
    sqlite3_bind_null(statement, 6);
  else
    sqlite3_bind_int(statement, 6, batch.rows.worker);
  sqlite3_bind_int(statement, 7, batch.is_applied);
  bind_event(statement, 8);
  sqlite3_bind_int64(statement, 9, batch.rows.count);
  sqlite3_bind_blob(statement, 10, batch.ids.data(), static_cast<int>(batch.ids.size()), SQLITE_STATIC);
  return run(statement);
}

// Nothing here is changed but the file: a commit that fails is final, and a busy one has not come here.
bool Database::put_batches() {
  for (const DatasetName& dataset : datasets_) {
    sqlite3_bind_int64(insert_dataset_.get(), 1, dataset.number);
    bind(insert_dataset_.get(), 2, dataset.class_name);
    if (dataset.length < 0)
      sqlite3_bind_null(insert_dataset_.get(), 3);
    else
      sqlite3_bind_int64(insert_dataset_.get(), 3, dataset.length);
    if (!run(insert_dataset_.get())) return false;
  }
  for (const Batch& batch : batches_) {
    if (!put_batch(batch)) return false;
    if (batch.rows.count == 0 || batch.event != StepEvent::kNone) continue;
    if (kept_.empty() || kept_.back().optimizer != batch.optimizer || kept_.back().step != batch.step)
      kept_.push_back({batch.optimizer, batch.step});
    ++kept_.back().batches;
    kept_.back().size_bytes += batch.ids.size();
    ++kept_batches_;
    kept_bytes_ += batch.ids.size();
  }
  for (; kept_batches_ > kMostBatches || kept_bytes_ > kMostBatchBytes; kept_.pop_front()) {
    const Old& old = kept_.front();
    bind(delete_batch_.get(), 1, optimizers_[old.optimizer].name);
    sqlite3_bind_int64(delete_batch_.get(), 2, static_cast<sqlite3_int64>(old.step));
    if (!run(delete_batch_.get())) return false;
    kept_batches_ -= old.batches;
    kept_bytes_ -= old.size_bytes;
  }
  return true;
}

bool Database::put_series(Kept& kept) {
  const Optimizer& optimizer = optimizers_[kept.optimizer];
  sqlite3_stmt* const statement = insert_series_.get();
  sqlite3_bind_int64(statement, 1, kept.id);
  bind(statement, 2, std::string(kept.quantity));
  bind(statement, 3, optimizer.name);
  const auto at = static_cast<std::size_t>(kept.parameter);
  if (kept.parameter < 0)
    sqlite3_bind_null(statement, 4);
  else
    bind(statement, 4, at < optimizer.parameters.size() ? optimizer.parameters[at] : std::to_string(at));
  if (kept.parameter < 0 || at >= optimizer.dtypes.size() || optimizer.dtypes[at].empty())
    sqlite3_bind_null(statement, 5);
  else
    bind(statement, 5, optimizer.dtypes[at]);
  kept.is_new = false;
  return run(statement);
}

bool Database::put_point(std::int64_t series, const Point& point) {
  sqlite3_stmt* const statement = insert_point_.get();
  sqlite3_bind_int64(statement, 1, series);
  sqlite3_bind_int64(statement, 2, static_cast<sqlite3_int64>(point.step));
  sqlite3_bind_int64(statement, 3, static_cast<sqlite3_int64>(point.last_step));
  bind(statement, 4, point.time);
  bind(statement, 5, point.first);
  bind(statement, 6, point.last);
  bind(statement, 7, point.min);
  bind(statement, 8, point.max);
  return run(statement);
}

// Merges whole points until there is room. The open one is not among them.
bool Database::make_coarser(Kept& kept) {
  const auto before = static_cast<sqlite3_int64>(kept.series.open().step);
  sqlite3_bind_int64(select_points_.get(), 1, kept.id);
  sqlite3_bind_int64(select_points_.get(), 2, before);
  std::vector<Point> points;
  int code;
  while ((code = sqlite3_step(select_points_.get())) == SQLITE_ROW) {
    sqlite3_stmt* const row = select_points_.get();
    points.push_back({static_cast<std::uint64_t>(sqlite3_column_int64(row, 0)),
                      static_cast<std::uint64_t>(sqlite3_column_int64(row, 1)), sqlite3_column_double(row, 2),
                      real_of(row, 3), real_of(row, 4), real_of(row, 5), real_of(row, 6)});
  }
  sqlite3_reset(select_points_.get());
  if (code != SQLITE_DONE) return false;
  while (points.size() + 1 >= kMostPoints) {
    points = merged_in_pairs(points);
    kept.series.coarsen();
  }
  sqlite3_bind_int64(delete_points_.get(), 1, kept.id);
  sqlite3_bind_int64(delete_points_.get(), 2, before);
  bool ok = run(delete_points_.get());
  for (const Point& point : points) ok = ok && put_point(kept.id, point);
  kept.written = static_cast<std::int64_t>(points.size());
  return ok;
}

template <typename Do>
bool Database::for_each_series(const Do& each) {
  for (auto& [unused, optimizer] : optimizers_) {
    std::vector<std::vector<Kept>*> every = {&optimizer.whole, &optimizer.rates, &optimizer.gradients,
                                             &optimizer.weights, &optimizer.norms};
    for (std::vector<Kept>& all : optimizer.parts) every.push_back(&all);
    for (std::vector<Kept>* all : every) {
      for (Kept& kept : *all)
        if (kept.is_changed && !each(kept)) return false;
    }
  }
  return true;
}

bool Database::write_all() {
  if (!put_batches()) return false;
  if (!for_each_series([&](Kept& kept) { return !kept.is_new || put_series(kept); })) return false;
  for (const auto& [series, point] : waiting_)
    if (!put_point(series, point)) return false;
  return for_each_series([&](Kept& kept) {
    if (kept.written + 1 >= static_cast<std::int64_t>(kMostPoints) && !make_coarser(kept)) return false;
    kept.is_changed = false;
    return put_point(kept.id, kept.series.open());
  });
}

Status Database::commit() {
  const int code = sqlite3_exec(db_.get(), "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
  if (code == SQLITE_BUSY) return {};
  if (code == SQLITE_OK && write_all() && execute("COMMIT")) {
    waiting_.clear();
    datasets_.clear();
    batches_.clear();
    waiting_bytes_ = 0;
    return {};
  }
  Status status = failure();
  (void)execute("ROLLBACK");
  return status;
}

Status Database::close(std::uint64_t rows_left_out) {
  Status status = commit();
  if (status.ok() && rows_left_out > 0 && !put_info("steps_left_out", std::to_string(rows_left_out)))
    status = failure();
  if (status.ok()) (void)execute("PRAGMA wal_checkpoint(TRUNCATE)");  // a reader may hold it up: the log stays then
  insert_info_.reset();
  insert_series_.reset();
  insert_point_.reset();
  select_points_.reset();
  delete_points_.reset();
  for (Statement* one : {&insert_dataset_, &insert_batch_, &mark_batch_, &delete_batch_}) one->reset();
  db_.reset();
  return status;
}

}  // namespace finitude::store
