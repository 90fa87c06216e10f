// `finitude diff` from two paths to the document that compare/document.h makes.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "compare/capsules.h"

namespace finitude::show {

// Tapes hold what was computed from, not what came of it: they are compared by computing again, which needs
// libtorch and values. Where there is neither, capsules are compared by the statistics of their traced run. Both: why
// not, or empty.
struct Players {
  std::function<std::string(const capture::Tape&, compare::Run*)> one;
  std::function<std::string(const capture::Tape& a, const capture::Tape& b, compare::Compared*)> both;
};

struct ComparedFiles {
  int code = 0;     // 0: they do not part, 1: they do, 3: one cannot be read, 4: cannot be done here
  std::string why;  // of 3 and 4, one line that is not made printable
  nlohmann::json document;
};

// Each path is a capsule (a folder, or packed), the file of a tape, or a report (a file, or a folder with one) that
// holds a trace. players: null where there is no libtorch; two traces are compared without.
ComparedFiles compare_files(const std::string& path_a, const std::string& path_b, const Players* players);

}  // namespace finitude::show
