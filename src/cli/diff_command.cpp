// `diff A B`: where two traced steps part; two checkpoints: checkpoint_diff.cpp; two dumps: dump_diff.cpp. To compare
// the values of capsules they are computed again, which needs torch: here the statistics of their traced runs are
// compared.
#include <algorithm>
#include <filesystem>

#include "cli/comparison_output.h"
#include "cli/newest.h"
#include "show/compared_files.h"
#include "show/comparison.h"
#include "show/run_files.h"

namespace finitude::cli {
namespace {

bool is_run_without_trace(const DiffWords& words) {
  std::error_code error;
  for (const std::string& path : {words.a, words.b}) {
    if (std::filesystem::exists(path + "/capsule.json", error) || show::store_of_run(path).empty()) return false;
  }
  return !show::has_trace(words.a) || !show::has_trace(words.b);
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
  const bool is_of_dumps = !words.names.empty() || !words.noise.empty() || words.joins_parts;
  if (!is_of_dumps && is_checkpoint(words.a) && is_checkpoint(words.b)) return checkpoint_diff(words, console);
  // By what runs leave without --level trace: their series, and how they were made.
  if (!is_of_dumps && is_run_without_trace(words))
    return give_comparison(show::compare_courses(words.a, words.b), words, console, show::course_comparison);
  if (is_dump(words.a) || is_dump(words.b)) return dump_diff(words, console);
  if (is_of_dumps) {
    console.complain("--map, --noise and --join are for dumps of --dump checksums or tensors, and of msprobe");
    return kUsage;
  }
  return give_comparison(show::compare_files(words.a, words.b, nullptr), words, console, show::comparison);
}

}  // namespace finitude::cli
