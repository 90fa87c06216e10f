// Pieces of the page of tables: escaped text, tensor tables, the op table, the history.
#pragma once

#include <string>
#include <string_view>

#include "show/read.h"

namespace finitude::show {

// Printable, and with & < > " ' as references: safe as text and in a quoted attribute.
std::string escape(std::string_view raw);
std::string escape_line(std::string_view printable_text);  // the same, with every blank of it

// "<tag class="kind">text</tag>", text escaped; empty for empty text. Tag and kind are ours, never the
// report's.
std::string element(const char* tag, const char* kind, std::string_view raw);

std::string tensor_table(const Json& inputs, const Json& outputs, const Json& rows_of_birth);
std::string op_table(const Json& report);        // of `trace`; empty without one
std::string history_words(const Json& history);  // empty without values

}  // namespace finitude::show
