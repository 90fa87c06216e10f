// Text from a report made safe to print: reports are hostile input, and a terminal obeys escape sequences.
#pragma once

#include <string>
#include <string_view>

namespace finitude::show {

// Control characters (C0, C1, DEL), bidirectional overrides, invisible and unassigned format characters and
// broken UTF-8 are written out (`\x1b`, `\u202e`); white space becomes one blank. With unicode = false the
// result is ASCII.
std::string printable(std::string_view raw, bool unicode = true);

// Columns that printable text takes: one per code point, two for wide East Asian characters and pictographs.
int columns(std::string_view printable_text);

// The longest prefix within `limit` columns (at least one code point), as a length in bytes.
std::size_t prefix_within(std::string_view printable_text, int limit);

// At most `limit` columns, with "..." for what is skipped: `cut` at the end, `cut_left` at the start
// (paths).
std::string cut(std::string_view printable_text, int limit);
std::string cut_left(std::string_view printable_text, int limit);

}  // namespace finitude::show
