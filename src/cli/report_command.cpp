// `report FILE`: a report as text, as one HTML page, or as checked JSON.
#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "show/json_file.h"
#include "show/printable.h"
#include "show/show.h"

namespace finitude::cli {
namespace {

// Written under a temporary name first: a page is whole or not there.
bool write_whole(const std::string& path, const std::string& bytes) {
  const std::string partial = path + ".partial";
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file << bytes;
    file.flush();
    if (!file) {
      std::remove(partial.c_str());
      return false;
    }
  }
  if (std::rename(partial.c_str(), path.c_str()) == 0) return true;
  std::remove(partial.c_str());
  return false;
}

}  // namespace

int report_command(const ReportWords& words, const Console& console) {
  nlohmann::json report;
  if (const std::string reason = show::read_report_json(words.file, show::kMaxFile, report); !reason.empty()) {
    console.complain(words.file + " " + reason);
    return kUnreadable;
  }
  if (!words.html.empty()) {
    if (!write_whole(words.html, show::html(report))) {
      console.complain("cannot write " + words.html);
      return kCannotHere;
    }
    console.err << "page written to " << show::printable(words.html, console.screen.unicode) << '\n';
  }
  if (words.json) {
    // ASCII only: a C1 control character inside a string must not reach a terminal.
    console.out << report.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  } else if (words.html.empty()) {
    console.out << show::terminal(report,
                                  {console.screen.colour, console.screen.width, console.screen.unicode});
  }
  return kDone;
}

}  // namespace finitude::cli
