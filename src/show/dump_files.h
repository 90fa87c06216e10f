// `finitude diff` of two dumps by the names of their records: dumps of modules (--dump checksums or tensors) and of
// msprobe.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "compare/records.h"
#include "finitude/status.h"

namespace finitude::show {

struct DumpRead {
  std::vector<compare::Record> records;
  nlohmann::json about;
  std::string values;       // the file of values; empty: there is none
  bool is_by_name = false;  // of modules, or of msprobe
};

// A report with a trace, or msprobe's dump.json or a folder that holds one. kUnsupported: it is something else.
finitude::Result<DumpRead> read_dump(const std::string& path);
// That of a dump, whether it is there or not; "" of what is no file of a dump.
std::string values_file_of(const std::string& path);
// Is it msprobe's?
bool is_msprobe(const std::string& path);

struct ComparedDumps {
  int code = 0;  // as of ComparedFiles
  std::string why;
  nlohmann::json document;
};
struct DumpOptions {
  std::string names;               // the file of --map; may be empty
  std::vector<std::string> noise;  // dumps of repeats of A (--noise)
  bool joins_parts = false;        // --join: each is joined with those of the other ranks (compare/joined_parts.h)
};
ComparedDumps compare_dumps(const std::string& path_a, const std::string& path_b, const DumpOptions& options);

}  // namespace finitude::show
