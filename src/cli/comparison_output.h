// What `diff` prints of a comparison, of whatever was compared.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace finitude::cli {

// The outcome of a comparison, as the options say: why it could not be made, JSON, text, or nothing. Returns its code.
// Found: one of ComparedFiles, ComparedRuns, ComparedDumps. render(document, options) gives the text.
template <typename Found, typename Render>
int give_comparison(const Found& found, const DiffWords& words, const Console& console, const Render& render) {
  constexpr int kColumns = 100;  // where the output is no terminal
  if (!found.why.empty()) {
    console.complain(found.why);
  } else if (words.json) {
    console.out << found.document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  } else if (!console.quiet) {
    const int width = console.screen.terminal ? console.screen.width : kColumns;
    console.out << render(found.document, {console.screen.colour, width, console.screen.unicode});
  }
  return found.code;
}

}  // namespace finitude::cli
