// A capsule: a folder that holds one step. capsule.json says what it is and lists the other files with their
// checksums; tape.bin is what was computed, tensors.safetensors what it was computed from, start.safetensors
// what else the program held when the step began, statistics.bin what the traced run saw of each op.
// docs/format/capsule.md.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "capture/safetensors.h"
#include "capture/tape.h"
#include "finitude/status.h"
#include "record/trace.h"

namespace finitude::capture {

inline constexpr int kCapsuleSchema = 1;

struct CapsuleOptions {
  std::uint64_t max_bytes = std::uint64_t{2} << 30;
  bool redact = false;  // statistics instead of values
};

// What the files of a capsule would take, roughly.
std::uint64_t capsule_bytes(const Tape& tape);

// What is to be written.
struct CapsuleDraft {
  Tape tape;
  nlohmann::json about;
  bool redact = false;
  std::vector<NamedTensor> start;   // what is not among the inputs of the tape
  std::vector<std::string> copied;  // their bytes, once they are let go of

  CapsuleDraft() = default;
  CapsuleDraft(CapsuleDraft&&) = default;
  CapsuleDraft& operator=(CapsuleDraft&&) = default;
  // Copies what `start` points to: from here on nothing that the program continues to write is read.
  void let_go_of_start();
  std::uint64_t bytes() const;  // that it holds
};

// `about` becomes capsule.json, with "schema", "files" and "tensors" added. start: what the step's program held when it
// began, beyond what the step reads; a tensor whose name and size are those of an input of the tape is not written
// twice. The tape's statistics, and then `start`, are skipped where the capsule would grow too large by them. Fails
// where the capsule is too large without. Copies no tensor.
Status draft_capsule(Tape tape, nlohmann::json about, const CapsuleOptions& options, std::vector<NamedTensor> start,
                     CapsuleDraft* draft);

struct CapsuleHooks {
  // What becomes "replay" in capsule.json, called with the folder, which has its name and lacks nothing but that; none:
  // that stays what it was.
  std::function<std::string(const std::string& folder)> tried;
  const std::atomic<bool>* cancelled = nullptr;  // ends it early
  bool trains_on =
      false;  // the program: its processors are left to it, and the files are read back after they were written
};

struct CapsuleTimes {  // of all its files
  std::uint64_t bytes = 0;
  double write = 0, check = 0;  // seconds: handing them to the system; reading them back beyond that
};

// Writes the folder under another name, reads its files back while they are written, holds them against what was to be
// written, and gives it its name: a folder of that name is whole. Only then it is replayed. Fails where the folder is
// there already; then, as in every other failure, nothing of what was written stays. Any thread.
Status write_capsule(const std::string& folder, CapsuleDraft draft, const CapsuleHooks& hooks = {},
                     CapsuleTimes* times = nullptr);
Status write_capsule(const std::string& folder, Tape tape, nlohmann::json about, const CapsuleOptions& options,
                     std::vector<NamedTensor> start = {});

// By name, the bytes of tensors of a capsule.
using TensorBytes = std::map<std::string, std::string>;

// Gives the bytes of the file of that name, at most so many.
using FileSource = std::function<Status(const char* name, std::uint64_t most_bytes, std::string* bytes)>;
// The files of a capsule: of its folder, or of a packed one, which is held in memory as long as *files is.
Status open_capsule(const std::string& path, FileSource* files);

// In what follows `path` is the folder of a capsule or a packed one.

// Checks sizes and checksums. No path is taken from the content. start: all tensors of the capsule, of two of one name
// that of start.safetensors; null: that file is not read.
Status read_capsule(const std::string& path, nlohmann::json* about, Tape* tape, TensorBytes* start = nullptr);

// What is wrong with each of its files that is missing or damaged, also with those that a replay does not read:
// "tape.bin is damaged: ..."
std::vector<std::string> capsule_damage(const std::string& path);
// The same where the files lie elsewhere. names: of all files that it lists, and of capsule.json.
std::vector<std::string> capsule_damage_of(const FileSource& files, std::set<std::string>* names);

// Whether none of its files is missing or damaged.
bool is_whole_capsule(const std::string& folder);

// What the traced run saw of each op; nothing else than that and capsule.json is read. Fails where a capsule has none.
// redacted: may be null.
Status read_capsule_statistics(const std::string& path, nlohmann::json* about, record::Trace* trace,
                               bool* redacted = nullptr);

// The same where the files lie elsewhere.
Status read_capsule_from(const FileSource& files, nlohmann::json* about, Tape* tape, TensorBytes* start);
Status read_capsule_statistics_from(const FileSource& files, nlohmann::json* about, record::Trace* trace,
                                    bool* redacted = nullptr);

}  // namespace finitude::capture
