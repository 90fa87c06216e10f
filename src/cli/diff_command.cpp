// `diff A B`: where two traced steps part; two checkpoints: checkpoint_diff.cpp; two dumps: dump_diff.cpp. To compare
// the values of capsules they are computed again, which needs torch: here the statistics of their traced runs are
// compared.
#include <algorithm>
#include <filesystem>

#include "cli/newest.h"
#include "show/compared_files.h"
#include "show/comparison.h"
#include "show/run_files.h"

namespace finitude::cli {
namespace {

constexpr int kColumns = 100;  // where the output is no terminal

bool is_run_without_trace(const DiffWords& words) {
  std::error_code error;
  for (const std::string& path : {words.a, words.b}) {
    if (std::filesystem::exists(path + "/capsule.json", error) || show::store_of_run(path).empty()) return false;
  }
  return !show::has_trace(words.a) || !show::has_trace(words.b);
}

// By what runs leave without --level trace: their series, and how they were made.
int run_diff(const DiffWords& words, const Console& console) {
  const show::ComparedRuns found = show::compare_courses(words.a, words.b);
  if (!found.why.empty()) {
    console.complain(found.why);
  } else if (words.json) {
    console.out << found.document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  } else if (!console.quiet) {
    const int width = console.screen.terminal ? console.screen.width : kColumns;
    console.out << show::course_comparison(found.document, {console.screen.colour, width, console.screen.unicode});
  }
  return found.code;
}

}  // namespace

int diff_command(const DiffWords& given, const Console& console) {
  DiffWords words = given;
  if (words.a.empty()) {
    const std::vector<std::string> two = take_newest_two(Wanted::kRecording, console);
    if (two.empty()) return kUnreadable;
    words.a = two[0];
    words.b = two[1];
  }
  if (is_checkpoint(words.a) && is_checkpoint(words.b)) return checkpoint_diff(words, console);
  if (is_run_without_trace(words)) return run_diff(words, console);
  if (is_dump(words.a) || is_dump(words.b)) return dump_diff(words, console);
  if (!words.names.empty() || !words.noise.empty()) {
    console.complain("--map and --noise are for dumps of --dump checksums or tensors, and of msprobe");
    return kUsage;
  }
  const show::ComparedFiles found = show::compare_files(words.a, words.b, nullptr);
  if (!found.why.empty()) {
    console.complain(found.why);
  } else if (words.json) {
    console.out << found.document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  } else if (!console.quiet) {
    const int width = console.screen.terminal ? console.screen.width : kColumns;
    console.out << show::comparison(found.document, {console.screen.colour, width, console.screen.unicode});
  }
  return found.code;
}

}  // namespace finitude::cli
