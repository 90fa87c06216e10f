// `report FILE`: a report as text, as one HTML page, or as checked JSON.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "capture/capsule.h"
#include "cli/commands.h"
#include "show/capsule_ops.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/show.h"

namespace finitude::cli {
int report_command(const ReportWords& words, const Console& console) {
  nlohmann::json report;
  if (const std::string reason = show::read_report_json(words.file, show::kMaxFile, report); !reason.empty()) {
    console.complain(words.file + " " + reason);
    return kUnreadable;
  }
  if (!words.html.empty()) {
    const std::string page = show::html(report);
    if (const Status status = base::write_whole(words.html, {page}); !status.ok()) {
      console.complain(words.html + " " + status.why());
      return kCannotHere;
    }
    console.err << "page written to " << show::printable(words.html, console.screen.unicode) << '\n';
  }
  if (words.json) {
    // ASCII only: a C1 control character inside a string must not reach a terminal.
    console.out << report.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  } else if (words.html.empty()) {
    console.out << show::terminal(report, {console.screen.colour, console.screen.width, console.screen.unicode});
  }
  if (!show::is_capsule_folder(words.file)) return kDone;
  const std::vector<std::string> damage =
      capture::capsule_damage(words.file);  // of its files that a report does not read
  for (const std::string& why : damage) console.complain(words.file + ": " + why);
  return damage.empty() ? kDone : kUnreadable;
}

}  // namespace finitude::cli
