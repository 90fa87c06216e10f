// A capsule: a folder that holds one step. capsule.json says what it is and lists the other files with their
// checksums; tape.bin is what was computed, tensors.safetensors what it was computed from.
// docs/format/capsule.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "capture/tape.h"
#include "finitude/status.h"

namespace finitude::capture {

inline constexpr int kCapsuleSchema = 1;

struct CapsuleOptions {
  std::uint64_t max_bytes = std::uint64_t{2} << 30;
  bool redact = false;  // statistics instead of values
};

// What the files of a capsule would take, roughly.
std::uint64_t capsule_bytes(const Tape& tape);

// Writes the folder under another name, reads it back, compares, and gives it its name: a folder of that name
// is whole. `about` becomes capsule.json, with "schema", "files" and "tensors" added. Fails where the folder
// is there already; then, as in every other failure, nothing of what was written stays.
Status write_capsule(const std::string& folder, Tape tape, nlohmann::json about,
                     const CapsuleOptions& options);

// Checks sizes and checksums. No path is taken from the folder's content.
Status read_capsule(const std::string& folder, nlohmann::json* about, Tape* tape);

}  // namespace finitude::capture
