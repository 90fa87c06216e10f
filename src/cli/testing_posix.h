// What the tests of the commands share: a folder of their own, and a command's output.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "show/sample_reports.h"

namespace finitude::cli {

struct Ran {
  int code;
  std::string out, err;
};

inline Ran ran(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const int code = run("finitude-offline", args, out, err, {});
  return {code, out.str(), err.str()};
}

inline std::string sample_path(const std::string& name) { return (show::samples_folder() / (name + ".json")).string(); }

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    path_ = std::filesystem::temp_directory_path() / ("finitude-cli-" + name + "-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
  }
  void TearDown() override {
    ::unsetenv("FINITUDE_RUNS");
    std::filesystem::remove_all(path_);
  }
  // Commands without a path read the runs of this folder.
  void use_runs(const std::filesystem::path& folder) { ::setenv("FINITUDE_RUNS", folder.c_str(), 1); }
  std::string put(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }
  std::filesystem::path path_;
};

}  // namespace finitude::cli
