#include "store/courses_posix.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "store/database.h"

namespace finitude::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBusyWaitMs = 500;
constexpr int kStepsBetweenLooks = 1000;  // of SQLite's machine
constexpr int kMostRows = 4096;           // of a series; the writer keeps half of that
constexpr int kLongestValue = 1 << 20, kLongestName = 1000;
constexpr off_t kMostFileBytes = off_t{4} << 30;
constexpr std::int64_t kMostStep = std::int64_t{1} << 53;

struct CloseReader {
  void operator()(sqlite3* db) const noexcept { sqlite3_close_v2(db); }
  void operator()(sqlite3_stmt* statement) const noexcept { sqlite3_finalize(statement); }
};
using Query = std::unique_ptr<sqlite3_stmt, CloseReader>;

struct Row {
  std::int64_t step = 0, last_step = 0;
  std::optional<double> first, last, min, max;
};

bool is_past(void* until) { return Clock::now() > *static_cast<Clock::time_point*>(until); }

// As SQLite takes it in a URI.
std::string quoted(const std::string& path) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string quoted;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::strchr("/-._~", c) != nullptr) {
      quoted += c;
    } else {
      quoted += '%';
      quoted += kDigits[byte >> 4];
      quoted += kDigits[byte & 15];
    }
  }
  return quoted;
}

// SQLite opens the files beside the store, and would follow a link. *has_log: somebody may be writing.
Status check_files(const std::string& path, bool* has_log) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {StatusCode::kUnreadable, "cannot be opened"};
  if (!S_ISREG(found.st_mode)) return {StatusCode::kUnreadable, "is no plain file"};
  if (found.st_size > kMostFileBytes) return {StatusCode::kTooLarge, "is too large"};
  for (const char* suffix : {"-wal", "-shm", "-journal"}) {
    if (lstat((path + suffix).c_str(), &found) != 0) continue;
    if (!S_ISREG(found.st_mode)) return {StatusCode::kCorrupt, "has a log that is no plain file"};
    *has_log |= std::string_view(suffix) == "-wal";
  }
  return {};
}

class Reader {
 public:
  explicit Reader(std::chrono::milliseconds time_limit) : until_(Clock::now() + time_limit) {}

  Status open(const std::string& path) {
    bool has_log = false;
    if (Status status = check_files(path, &has_log); !status.ok()) return status;
    std::error_code error;
    const std::string whole = std::filesystem::absolute(path, error).string();
    // Without a log nobody writes, and SQLite need not make files beside it.
    const std::string address = "file:" + quoted(whole) + (has_log ? "?mode=ro" : "?mode=ro&immutable=1");
    sqlite3* db = nullptr;
    const int code =
        sqlite3_open_v2(address.c_str(), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, nullptr);
    db_.reset(db);
    if (code != SQLITE_OK) return {StatusCode::kUnreadable, db ? sqlite3_errmsg(db) : "no memory"};
    sqlite3_busy_timeout(db, kBusyWaitMs);
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, kLongestValue);
    sqlite3_progress_handler(
        db, kStepsBetweenLooks, [](void* until) { return is_past(until) ? 1 : 0; }, &until_);
    for (const char* setting : {"PRAGMA trusted_schema = OFF", "PRAGMA query_only = ON", "PRAGMA cell_size_check = ON",
                                "PRAGMA mmap_size = 0"})
      sqlite3_exec(db, setting, nullptr, nullptr, nullptr);
    return check_schema();
  }

  // {id, course without values} of the series of whole optimizers.
  Status series(std::vector<std::pair<std::int64_t, Course>>* found) {
    const Query query = asked("SELECT id, quantity, optimizer FROM series WHERE parameter IS NULL ORDER BY id");
    int code = query ? SQLITE_ROW : SQLITE_ERROR;
    while (query && found->size() < kMostCourses && (code = sqlite3_step(query.get())) == SQLITE_ROW) {
      Course course;
      course.quantity = text(query.get(), 1);
      course.optimizer = text(query.get(), 2);
      if (sqlite3_column_type(query.get(), 0) == SQLITE_INTEGER && !course.quantity.empty())
        found->emplace_back(sqlite3_column_int64(query.get(), 0), std::move(course));
    }
    return code == SQLITE_ROW || code == SQLITE_DONE ? Status() : failure();
  }

  Status rows(std::int64_t series, std::vector<Row>* found) {
    const Query query =
        asked("SELECT step, last_step, first, last, \"min\", \"max\" FROM point WHERE series = ? ORDER BY step");
    if (!query) return failure();
    sqlite3_bind_int64(query.get(), 1, series);
    int code = SQLITE_ROW;
    while (found->size() < kMostRows && (code = sqlite3_step(query.get())) == SQLITE_ROW) {
      Row row;
      if (!step(query.get(), 0, &row.step) || !step(query.get(), 1, &row.last_step) || row.last_step < row.step)
        return {StatusCode::kCorrupt, "has a point without steps"};
      row.first = real(query.get(), 2);
      row.last = real(query.get(), 3);
      row.min = real(query.get(), 4);
      row.max = real(query.get(), 5);
      found->push_back(row);
    }
    return code == SQLITE_ROW || code == SQLITE_DONE ? Status() : failure();
  }

  // Likewise of optimizers and parameters.
  Status all_series(std::vector<std::pair<std::int64_t, PointSeries>>* found) {
    const Query query =
        asked("SELECT id, quantity, optimizer, parameter FROM series ORDER BY parameter IS NOT NULL, id LIMIT 4096");
    int code = query ? SQLITE_ROW : SQLITE_ERROR;
    while (query && found->size() < kMostSeries && (code = sqlite3_step(query.get())) == SQLITE_ROW) {
      PointSeries one{text(query.get(), 1), text(query.get(), 2), text(query.get(), 3), {}};
      if (sqlite3_column_type(query.get(), 0) == SQLITE_INTEGER && !one.quantity.empty())
        found->emplace_back(sqlite3_column_int64(query.get(), 0), std::move(one));
    }
    return code == SQLITE_ROW || code == SQLITE_DONE ? Status() : failure();
  }

  // None where the store has no rows of data sets.
  Status batches(std::vector<BatchContent>* found) {
    const Query known = asked("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'batch'");
    if (!known || sqlite3_step(known.get()) != SQLITE_ROW || sqlite3_column_int64(known.get(), 0) != 1) return {};
    const Query query =
        asked("SELECT optimizer, step, micro_batch, ids FROM batch ORDER BY step, optimizer, micro_batch LIMIT 100000");
    int code = query ? SQLITE_ROW : SQLITE_ERROR;
    while (query && found->size() < kMostBatches && (code = sqlite3_step(query.get())) == SQLITE_ROW) {
      std::int64_t at = 0, micro_batch = 0;
      if (!step(query.get(), 1, &at) || !step(query.get(), 2, &micro_batch)) continue;
      const auto* bytes = static_cast<const char*>(sqlite3_column_blob(query.get(), 3));
      if (bytes == nullptr) continue;
      found->push_back({text(query.get(), 0), static_cast<std::uint64_t>(at), static_cast<std::uint64_t>(micro_batch),
                        std::string(bytes, static_cast<std::size_t>(sqlite3_column_bytes(query.get(), 3)))});
    }
    return code == SQLITE_ROW || code == SQLITE_DONE ? Status() : failure();
  }

 private:
  // A view or a virtual table of such a name would run what somebody else wrote.
  Status check_schema() {
    const Query version = asked("PRAGMA user_version");
    if (!version || sqlite3_step(version.get()) != SQLITE_ROW) return failure();
    if (sqlite3_column_int64(version.get(), 0) != kSchemaVersion)
      return {StatusCode::kUnsupported, "has another version"};
    const Query tables = asked(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('series', 'point') "
        "AND upper(substr(sql, 1, 12)) = 'CREATE TABLE'");
    if (!tables || sqlite3_step(tables.get()) != SQLITE_ROW) return failure();
    if (sqlite3_column_int64(tables.get(), 0) != 2) return {StatusCode::kCorrupt, "has other tables"};
    return {};
  }

  Query asked(const char* sql) {
    sqlite3_stmt* made = nullptr;
    sqlite3_prepare_v2(db_.get(), sql, -1, &made, nullptr);
    return Query(made);
  }

  static std::string text(sqlite3_stmt* query, int column) {
    if (sqlite3_column_type(query, column) != SQLITE_TEXT) return {};
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(query, column));
    return bytes == nullptr
               ? std::string()
               : std::string(bytes,
                             static_cast<std::size_t>(std::min(sqlite3_column_bytes(query, column), kLongestName)));
  }

  static bool step(sqlite3_stmt* query, int column, std::int64_t* value) {
    if (sqlite3_column_type(query, column) != SQLITE_INTEGER) return false;
    *value = sqlite3_column_int64(query, column);
    return *value >= 0 && *value < kMostStep;
  }

  static std::optional<double> real(sqlite3_stmt* query, int column) {
    const int type = sqlite3_column_type(query, column);
    const double value = sqlite3_column_double(query, column);
    return (type == SQLITE_FLOAT || type == SQLITE_INTEGER) && std::isfinite(value) ? std::optional(value)
                                                                                    : std::nullopt;
  }

  Status failure() const { return {StatusCode::kCorrupt, sqlite3_errmsg(db_.get())}; }

  std::unique_ptr<sqlite3, CloseReader> db_;
  Clock::time_point until_;
};

// False: no point has a value.
bool put_values(const std::vector<Row>& rows, std::size_t parts, Course* course) {
  if (rows.empty()) return false;
  const std::int64_t from = rows.front().step, steps = rows.back().last_step - from + 1;
  if (steps < 1) return false;  // points that overlap
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(parts, 1));
  const std::int64_t count = std::min(most, steps);
  course->first_step = static_cast<std::uint64_t>(from);
  course->last_step = static_cast<std::uint64_t>(rows.back().last_step);
  course->parts.assign(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN());
  const auto part_of = [&](std::int64_t step) {
    const double share = static_cast<double>(step - from) / static_cast<double>(steps);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(share * static_cast<double>(count)), 0, count - 1);
  };
  bool has_value = false;
  for (const Row& row : rows) {
    if (!row.first || !row.last || !row.min || !row.max) continue;
    if (!has_value) {
      course->first = *row.first;
      course->min = *row.min;
      course->max = *row.max;
    }
    has_value = true;
    course->last = *row.last;
    course->min = std::min(course->min, *row.min);
    course->max = std::max(course->max, *row.max);
    for (std::int64_t at = part_of(row.step); at <= part_of(row.last_step); ++at) {
      double& part = course->parts[static_cast<std::size_t>(at)];
      if (!(part >= *row.max)) part = *row.max;
    }
  }
  return has_value;
}

}  // namespace

Status read_courses(const std::string& path, std::size_t parts, std::vector<Course>* courses,
                    std::chrono::milliseconds time_limit) {
  courses->clear();
  Reader reader(time_limit);
  std::vector<std::pair<std::int64_t, Course>> found;
  if (Status status = reader.open(path); !status.ok()) return status;
  if (Status status = reader.series(&found); !status.ok()) return status;
  for (auto& [id, course] : found) {
    std::vector<Row> rows;
    if (Status status = reader.rows(id, &rows); !status.ok()) return status;
    if (put_values(rows, parts, &course)) courses->push_back(std::move(course));
  }
  return {};
}

Status read_points(const std::string& path, std::vector<PointSeries>* series, std::vector<BatchContent>* batches,
                   std::chrono::milliseconds time_limit) {
  series->clear();
  batches->clear();
  Reader reader(time_limit);
  std::vector<std::pair<std::int64_t, PointSeries>> found;
  if (Status status = reader.open(path); !status.ok()) return status;
  if (Status status = reader.all_series(&found); !status.ok()) return status;
  std::size_t points = 0;
  for (auto& [id, one] : found) {
    std::vector<Row> rows;
    if (points >= kMostPointsRead) break;
    if (Status status = reader.rows(id, &rows); !status.ok()) return status;
    points += rows.size();
    for (const Row& row : rows) {
      Point point;
      point.step = static_cast<std::uint64_t>(row.step);
      point.last_step = static_cast<std::uint64_t>(row.last_step);
      if (row.first && row.last && row.min && row.max) {
        point.first = *row.first;
        point.last = *row.last;
        point.min = *row.min;
        point.max = *row.max;
      }
      one.points.push_back(point);
    }
    if (!one.points.empty()) series->push_back(std::move(one));
  }
  return reader.batches(batches);
}

}  // namespace finitude::store
