// Replays a capsule with libtorch: the calls of the step are issued again, and every bit of what comes out is compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "finitude/export.h"
#include "finitude/status.h"

namespace finitude {

struct ReplayOptions {
  int threads = 0;                 // 0: as many as there were
  bool deterministic = false;      // deterministic kernels only; a call that has none fails
  std::vector<std::string> allow;  // operators of these namespaces may be called beside aten's
};

struct ReplayOutcome {
  std::string kind, name;  // "gradient", "head.weight"
  bool same = false;       // every bit
};

struct Replay {
  // same-class: other bits, but the same results are non-finite. persistent, transient, order-dependent: of three runs.
  // cannot: operators are missing here; failed: a call failed.
  enum class Verdict : std::uint8_t {
    kIdentical,
    kSameClass,
    kPersistent,
    kTransient,
    kOrderDependent,
    kNothing,
    kFailed,
    kCannot,
  };
  Verdict verdict = Verdict::kFailed;
  std::string text;  // what there is to say of it, for people
  std::vector<ReplayOutcome> outcomes;
  std::uint64_t calls = 0;  // that were issued, in the first run
  double seconds = 0;       // that they took
  bool reproduced() const noexcept { return verdict == Verdict::kIdentical || verdict == Verdict::kSameClass; }
};

// Of the folder of a capsule, or the file of a tape that holds its inputs itself. Fails where it cannot be read, or was
// made with redact. Generators, settings and grad mode of this process are put back. One at a time, from any thread; no
// exception leaves.
FINITUDE_API Result<Replay> replay_capsule(const std::string& path, const ReplayOptions& options = {});

}  // namespace finitude
