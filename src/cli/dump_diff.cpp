// `diff A B` of two dumps by the names of their records.
#include <filesystem>

#include "cli/comparison_output.h"
#include "show/dump_files.h"
#include "show/json_file.h"
#include "show/record_comparison.h"

namespace finitude::cli {

bool is_dump(const std::string& path) {
  std::error_code error;
  if (show::is_msprobe(path)) return true;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::string bytes;  // a trace of operators has no checksums
  return show::read_file(path, show::kMaxFile, bytes).empty() && bytes.starts_with('{') &&
         bytes.find("\"checksum\"") != std::string::npos &&
         bytes.find("\"storage\"") == std::string::npos;  // that of operators is a trace
}

int dump_diff(const DiffWords& words, const Console& console) {
  const show::ComparedDumps found =
      show::compare_dumps(words.a, words.b, {words.names, words.noise, words.joins_parts});
  return give_comparison(found, words, console, show::record_comparison);
}

}  // namespace finitude::cli
