// Which record of one dump represents which of the other: by name, by a map of names, by the name without wrappers, and
// at last by structure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compare/align.h"
#include "compare/records.h"
#include "finitude/status.h"

namespace finitude::compare {

// Names of A and what they are called in B. `*` is any text, and has the same text in B. A name without `*` is also of
// all that is in that module.
struct NameMap {
  std::vector<std::pair<std::string, std::string>> entries;

  // The name in B of what A calls `name`; empty: no entry fits.
  std::string of(const std::string& name) const;
};

// A line for each name: `"encoder.*" = "enc.*"`, or two words. `#` begins a comment; lines of `[table]` are skipped.
finitude::Result<NameMap> parse_name_map(std::string_view text);

// Without the class of the model, and without what wrappers (DDP, FSDP, torch.compile, checkpoints) put into it; of
// operators without library and the mark of writing in place.
std::string plain_name(const Record& record);

enum class MatchedBy { kName, kMap, kPlainName, kStructure };
std::string_view word(MatchedBy by) noexcept;

struct RecordRow {
  std::uint32_t a = kGap, b = kGap;  // kGap on one side: inserted or missing
  MatchedBy by = MatchedBy::kName;
};

// Those of A in their order, and each of B alone behind the row of the record before it.
std::vector<RecordRow> match_records(const std::vector<Record>& a, const std::vector<Record>& b, const NameMap& map);

}  // namespace finitude::compare
