#include "cli/screen_posix.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace finitude::cli {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first of these that is set decides (POSIX.1-2017, 8.2).
bool unicode_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = variable(name);
    if (value.empty()) continue;
    for (const char* code : {"UTF-8", "utf-8", "utf8", "UTF8"}) {
      if (value.find(code) != std::string_view::npos) return true;
    }
    return false;
  }
  return false;
}

}  // namespace

Screen screen_of_stdout() {
  Screen screen;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  screen.terminal = terminal;
  screen.colour = terminal && variable("NO_COLOR").empty() && variable("TERM") != "dumb";
  screen.unicode = unicode_locale();
  screen.shows_progress = isatty(STDERR_FILENO) == 1 && variable("TERM") != "dumb";
  winsize size{};
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    screen.width = std::clamp<int>(size.ws_col, 24, 160);
  }
  return screen;
}

}  // namespace finitude::cli
