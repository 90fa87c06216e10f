// Which operator it was, where one of a hostile tape, or of a user's library, crashes and so ends a replay.
#pragma once

#include <csignal>
#include <cstddef>
#include <vector>

namespace finitude::replay {

// This operator runs, until the end of the guard; its threads count as well. The name has to live as long.
class AtWork {
 public:
  AtWork(const char* op, std::size_t number);
  ~AtWork();
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
};

// While it lives, a signal of a fault that comes while an operator runs ends the process with this exit code, and one
// line on stderr that names both. Else it has the effect that it had before.
class CrashLine {
 public:
  explicit CrashLine(int exit_code);
  ~CrashLine();
  CrashLine(const CrashLine&) = delete;
  CrashLine& operator=(const CrashLine&) = delete;

 private:
  std::vector<std::byte> stack_;  // the other one may be what overflowed
  stack_t before_{};
};

}  // namespace finitude::replay
