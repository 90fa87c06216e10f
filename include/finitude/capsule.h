// Reads a capsule: the folder that a bad step was left in. docs/format/capsule.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "finitude/export.h"
#include "finitude/report.h"
#include "finitude/status.h"

namespace finitude {

// Memory that the step reads, as it was when the step began.
struct CapsuleInput {
  std::string kind, name;  // "parameter", "head.weight"; empty: nobody named it
  std::uint64_t size_bytes = 0;
};

// One call of an operator, in the order in which they are issued.
struct CapsuleCall {
  std::string op;    // "aten::log", without overload
  std::string file;  // of the program; empty: not known
  std::int64_t line = 0;
  std::string source;  // text of that line
};

struct Capsule {
  std::int64_t step = 0;
  std::string optimizer;  // its class
  std::string torch, created, machine;
  bool redacted = false;  // no values: it cannot be replayed
  std::string replay;     // how a replay came out when it was written: "identical", what went wrong, "not tried"
  Alarm alarm;
  std::vector<std::pair<std::string, std::string>> settings;  // of torch, that kernels read
  std::vector<CapsuleInput> inputs;
  std::vector<CapsuleCall> calls;
  std::vector<std::pair<std::string, std::string>> outcomes;  // (kind, name) of what a replay is compared by
};

// Checks sizes and checksums; bounded by the size of the files. The inputs' values are not kept. Any thread; no
// exception leaves.
FINITUDE_API Result<Capsule> read_capsule(const std::string& folder);

}  // namespace finitude
