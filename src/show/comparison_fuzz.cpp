// Fuzzing `finitude diff` behind its readers: two traced reports of which one is damaged are aligned, judged and shown,
// and so is a damaged document.
#include "show/comparison.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/edits.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/sample_reports.h"
#include "show/testing.h"

namespace finitude::show {
namespace {

using nlohmann::json;

void check_shown(const json& document) {
  std::istringstream lines(comparison(document, {false, 80, true}));
  for (std::string line; std::getline(lines, line);) {
    if (printable(line) == line) continue;
    std::fprintf(stderr, "a line that cannot be printed\n");
    std::abort();
  }
}

}  // namespace
}  // namespace finitude::show

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::show;
  static const nlohmann::json sound = sample("trace");
  static const std::string text = sound.dump(), document = compared(sound, sound).dump();
  nlohmann::json other, damaged;
  if (parse_report_json(finitude::base::edited(text, input, size, 2), other).empty() && other.contains("trace"))
    check_shown(compared(sound, other));
  if (parse_json(finitude::base::edited(document, input, size, 2), damaged).empty()) check_shown(damaged);
  return 0;
}
