// The incident layer for programs that are not in C++: one question and its answer, both as JSON text.
#pragma once

#include <string>

#include "finitude/status.h"

namespace finitude::incident {

// question: {"what": WORD, ...}. run: a folder, as the system names it, for the word that needs one. The words, what
// they take and what they give:
//   members       -                                 [{"name", "report" (or null), "missing"}] of run, see member.h
//   merged        own: report, members: as above    report, see merge.h
//   closing_line  report                            text, see report.h
//   html          report                            text, the page
//   terminal      report, colour, width, unicode    text, see show/show.h
// An error says what of the question is wrong.
Result<std::string> answer(const std::string& question, const std::string& run);

}  // namespace finitude::incident
