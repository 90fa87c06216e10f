// The cores that a thread may run on, and a thread that is kept on one of them for a while.
#pragma once

#include <memory>
#include <vector>

namespace finitude::base {

// Of the calling thread, ascending. Empty where the system does not say, and beyond 1024 cores.
std::vector<int> allowed_cores();

// The calling thread, and threads that it starts from then on, run on this core alone. False: the system refuses.
bool stay_on_core(int core) noexcept;

// On which the calling thread is just now; -1: not known.
int current_core() noexcept;

// While it lives, the calling thread runs on this core alone. Nothing happens where the core is not allowed or
// negative. Its end is for the same thread. A thread inherits the cores of the one that starts it: those that were
// started meanwhile (by OpenMP) and have this core alone may run where the thread could before.
class PinnedCore {
 public:
  explicit PinnedCore(int core);
  ~PinnedCore();
  PinnedCore(const PinnedCore&) = delete;
  PinnedCore& operator=(const PinnedCore&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;  // null: nothing was changed
};

}  // namespace finitude::base
