// Processes that we start, and that the program must not hear of: a handler of SIGCHLD that it set in Python is not
// called for them. It may count the calls, raise, or wait for any child.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace finitude::base {

// The handlers that are kept from hearing of them: those in the library or program that `inside` is of, Python's. One
// in C stays as it is: what it expects of the kernel is not known. nullptr: none.
void keep_children_from(const void* inside);

// After a handler was set, in which the program keeps its own (signal.signal): where one of ours lives, again.
void keep_children_again();

// Around the life of one such process, on any thread: made before it is started, and gone once it has been waited for.
// The program may wait for any child itself, and take it: waitpid then ends with ECHILD.
class OwnChild {
 public:
  OwnChild();
  ~OwnChild();
  OwnChild(const OwnChild&) = delete;
  OwnChild& operator=(const OwnChild&) = delete;

  // 0: it could not be started.
  void started(pid_t process);

 private:
  pid_t process_ = 0;
  bool is_starting_ = true;
  bool has_others_;      // children of the program's could be waited for before it began
  std::uint32_t heard_;  // how often the program had heard of a child by then
};

}  // namespace finitude::base
