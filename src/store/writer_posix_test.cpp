#include "store/writer_posix.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "store/testing.h"

namespace finitude::store {
namespace {

namespace fs = std::filesystem;

class StoreWriter : public StoreTest {
 protected:
  std::unique_ptr<Writer> opened() {
    std::unique_ptr<Writer> writer;
    const Status status = Writer::open(path_, {{"rank", "0"}}, &writer);
    EXPECT_TRUE(status.ok()) << status.why();
    return writer;
  }

  // The only integer of a query; -1: there is none yet.
  std::int64_t ask(const std::string& query) const {
    sqlite3* db = nullptr;
    sqlite3_stmt* statement = nullptr;
    std::int64_t value = -1;
    if (sqlite3_open_v2(path_.c_str(), &db, SQLITE_OPEN_READONLY, nullptr) == SQLITE_OK &&
        sqlite3_prepare_v2(db, query.c_str(), -1, &statement, nullptr) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
      value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return value;
  }
};

StepRow row_of(std::uint64_t step, std::span<const float> gradients = {}) {
  StepRow row;
  row.step = step;
  row.time_ns = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  row.loss = static_cast<double>(step);
  row.gradients = gradients;
  return row;
}

TEST_F(StoreWriter, WhatItGotIsThereWhenItCloses) {
  const auto writer = opened();
  writer->name(0, {"SGD", {"w"}});
  const std::vector<float> gradients = {1.0f};
  for (std::uint64_t step = 0; step < 5000; ++step) writer->push(row_of(step, gradients));
  ASSERT_TRUE(writer->close().ok());
  EXPECT_TRUE(writer->close().ok());
  EXPECT_FALSE(fs::exists(path_ + "-wal"));  // whoever reads makes it again
  EXPECT_EQ(ask("SELECT max(last_step) FROM point"), 4999);
  EXPECT_EQ(ask("SELECT sum(last_step - step + 1) FROM point JOIN series ON id = series WHERE parameter = 'w'"), 5000);
  EXPECT_EQ(ask("SELECT abs(strftime('%s', 'now') - max(time)) < 60 FROM point"), 1);
}

TEST_F(StoreWriter, ARowIsThereBeforeItCloses) {
  const auto writer = opened();
  writer->name(0, {"SGD", {}});
  writer->push(row_of(7));
  for (int i = 0; i < 200 && ask("SELECT max(last_step) FROM point") != 7; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_EQ(ask("SELECT max(last_step) FROM point"), 7);
}

TEST_F(StoreWriter, AFolderThatIsNotThereIsSaid) {
  std::unique_ptr<Writer> writer;
  const Status made = Writer::open((folder_ / "none" / "store.sqlite").string(), {}, &writer);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.why().find("unable to open"), std::string::npos) << made.why();
}

TEST_F(StoreWriter, AForkedChildLetsItGo) {
  auto writer = opened();
  writer->name(0, {"SGD", {}});
  writer->push(row_of(0));
  const pid_t child = fork();
  if (child == 0) {
    Writer::let_go(std::move(writer));
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  writer->push(row_of(1));
  ASSERT_TRUE(writer->close().ok());
  EXPECT_EQ(ask("SELECT max(last_step) FROM point"), 1);
}

// FINITUDE_STORE_KILLS=200 (make bench-store): some minutes.
TEST_F(StoreWriter, AKilledOneLeavesNoWrongRow) {
  const char* wanted = std::getenv("FINITUDE_STORE_KILLS");
  const int kills = wanted == nullptr ? 3 : std::atoi(wanted);
  for (int i = 0; i < kills; ++i) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (child == 0) {  // step N has loss N
      std::unique_ptr<Writer> writer;
      if (!Writer::open(path_, {}, &writer).ok()) _exit(1);
      writer->name(0, {"SGD", {"w"}});
      const std::vector<float> gradients = {1.0f};
      for (std::uint64_t step = 0;; ++step) {
        const StepRow row = row_of(step, gradients);
        writer->push(row);
        const std::uint64_t written[] = {step, row.time_ns};
        if (write(pipe_ends[1], written, sizeof written) != sizeof written) _exit(2);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
    close(pipe_ends[1]);
    // Meanwhile its steps are read: the pipe must not fill up.
    std::vector<std::uint64_t> times;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(700 + i * 97 % 1100);
    std::uint64_t written[2];
    while (std::chrono::steady_clock::now() < until && read(pipe_ends[0], written, sizeof written) == sizeof written)
      times.push_back(written[1]);
    kill(child, SIGKILL);
    while (read(pipe_ends[0], written, sizeof written) == sizeof written) times.push_back(written[1]);
    close(pipe_ends[0]);
    waitpid(child, nullptr, 0);
    ASSERT_FALSE(times.empty());
    const std::int64_t last = ask("SELECT ifnull(max(last_step), -1) FROM point");
    const std::uint64_t known = last < 0 ? times.front() : times.at(static_cast<std::size_t>(last));
    EXPECT_LT(static_cast<double>(times.back() - known) * 1e-9, 1.0) << last << " of " << times.size();
    EXPECT_EQ(ask("SELECT count(*) FROM point JOIN series ON id = series WHERE quantity = 'loss' AND (first <> step OR "
                  "min <> step OR last <> last_step OR max <> last_step)"),
              0);
    EXPECT_EQ(ask("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"), 0);
  }
}

}  // namespace
}  // namespace finitude::store
