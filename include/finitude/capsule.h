// Reads a capsule: the folder with one bad step that Finitude writes on an alarm. Format: docs/format/capsule.md.
//
// Reading needs no torch. To compute the step again, see finitude/replay.h. Text fields are UTF-8 as they are in the
// file; an empty text means that the value is absent or not known.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "finitude/export.h"
#include "finitude/report.h"
#include "finitude/status.h"

namespace finitude {

// A block of memory that the step reads and that existed before the step: a parameter, a buffer, a batch, a gradient.
// Its values are in the capsule, but are not kept here.
struct CapsuleInput {
  // kind: "parameter", "buffer", "state" and so on (docs/format/tape.md). name: as the program named it
  // ("head.weight"). Both may be empty.
  std::string kind, name;
  // Of the whole block, in bytes.
  std::uint64_t size_bytes = 0;
};

// One call of an ATen operator. The calls are in the order in which they were issued.
struct CapsuleCall {
  // Qualified name without overload: "aten::log".
  std::string op;
  // Path of the source file of the program. Empty: not known; line is 0 and source is empty then.
  std::string file;
  // Line number in `file`, from 1. 0: not known.
  std::int64_t line = 0;
  // Text of that line when the step was recorded.
  std::string source;
};

// What a capsule says of its step.
struct Capsule {
  // 0-based: calls of step() of that optimizer before this one.
  std::int64_t step = 0;
  // Name of the optimizer's class.
  std::string optimizer;
  // Version of torch, time of writing, and machine, as text.
  std::string torch, created, machine;
  // True: the capsule holds statistics instead of values, and cannot be replayed.
  bool redacted = false;
  // Result of the replay that was made when the capsule was written: "identical", "not tried", or what went wrong.
  std::string replay;
  // The alarm of this step as in the report: sink, births, cause, fix.
  Alarm alarm;
  // (name, value) of settings of torch that change what kernels compute.
  std::vector<std::pair<std::string, std::string>> settings;
  // What the step read.
  std::vector<CapsuleInput> inputs;
  // What the step called.
  std::vector<CapsuleCall> calls;
  // (kind, name) of the tensors whose bits a replay compares: losses, gradients, and buffers or parameters that the
  // step wrote.
  std::vector<std::pair<std::string, std::string>> outcomes;
};

// Reads the capsule in `folder`. Checks sizes and checksums of its files first, so a damaged capsule is an error and
// not a wrong answer. Memory and time are bounded by the size of the files.
//
// Errors: kUnreadable (no such folder, a file is missing or cannot be read, or reading failed in another way), kCorrupt
// (damaged, cut off, or no capsule), kUnsupported (schema or tape version of another release), kTooLarge (a file or a
// tensor is above the limits). why() begins with `folder`.
//
// Any thread. Blocks on file I/O. Keeps no file open. Exceptions become kUnreadable.
FINITUDE_API Result<Capsule> read_capsule(const std::string& folder);

}  // namespace finitude
