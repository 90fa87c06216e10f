// The offline command line: reads what a run left behind, on any machine, without torch or Python.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace finitude::cli {

enum Exit : int { kDone = 0, kFindingIsBad = 1, kUsage = 2, kUnreadable = 3, kCannotHere = 4 };

// What the output goes to.
struct Screen {
  bool terminal = false;
  bool colour = false;
  bool unicode = true;
  int width = 80;
  bool shows_progress = false;  // messages go to a terminal as well
};

int main(int argc, char** argv);

// The same with its surroundings given; `program` is the name shown in usage, `args` come without it.
int run(const std::string& program, const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
        const Screen& screen);

}  // namespace finitude::cli
