// Fuzzing the reader of reports and all that is made of one: whatever its JSON says, it is judged, shown on lines of
// the terminal, as a page without a live tag of its own, and read as a document of the C++ interface.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/edits.h"
#include "compare/about.h"
#include "compare/trace_run.h"
#include "finitude/report.h"
#include "show/capsule_report.h"
#include "show/json_file.h"
#include "show/page.h"
#include "show/printable.h"
#include "show/sample_reports.h"
#include "show/show.h"
#include "show/summary.h"

namespace finitude::show {
namespace {

using nlohmann::json;

void fail(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::abort();
}

void check_shown(const json& report) {
  std::istringstream lines(terminal(report, {false, 80, true}));
  for (std::string line; std::getline(lines, line);) {
    if (columns(line) > 80 || printable(line) != line) fail("a line that does not fit the terminal");
  }
  if (html_tables(report).find("<script") != std::string::npos) fail("a script of the report's own");
  if (filled_page("@@title@@@@terminal@@@@report@@", report).find('<') != std::string::npos)
    fail("a tag of the report's own");
  if (summary(report).size() > 100'000) fail("a summary without end");
}

// shown: also what is made of one, and of one that is refused, which has to be as harmless. Seldom: that takes long.
void check(const std::string& bytes, bool shown) {
  json report;
  const std::string reason = parse_report_json(bytes, report);
  if (printable(reason) != reason) fail("a reason that cannot be printed");
  if (shown && parse_report(bytes).ok() != reason.empty()) fail("two readers disagree");
  // The same as that of a capsule, whose file says the rest.
  json of_capsule;
  if (shown && reason.empty() && !report["alarms"].empty() &&
      report_of_capsule({{"kind", "finitude capsule"}, {"alarm", report["alarms"][0]}, {"ranks", report["watched"]}},
                        "", of_capsule)
          .empty())
    fail("ranks that are no number");
  if (shown && !report.is_discarded() && report_of_capsule(report, "", of_capsule).empty()) check_shown(of_capsule);
  if (reason.empty() && report.contains("trace")) compare::run_of_trace(report);
  if (shown && !report.is_discarded()) {
    check_shown(report);
    compare::about_differences(report, {}, json::object(), {{"threads", "1"}});
  }
}

}  // namespace
}  // namespace finitude::show

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  using namespace finitude::show;
  static const std::vector<std::string> sound = [] {
    std::vector<std::string> all;
    for (const auto& [name, report] : samples()) all.push_back(report.dump());
    // The longest, in the end, comes up seldom: the others hold the same keys.
    std::sort(all.begin(), all.end(), [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
    return all;
  }();
  const std::size_t which = size == 0 ? 0 : input[size - 1];
  check(std::string(reinterpret_cast<const char*>(input), size), which % 64 == 0);
  const std::string& one = which == 255 ? sound.back() : sound[which % (sound.size() - 1)];
  check(finitude::base::edited(one, input, size, 1 + which % 3), which % 64 == 0);
  return 0;
}
