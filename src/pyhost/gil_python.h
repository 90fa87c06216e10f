// Releases the GIL while this thread waits for something that is not Python: a lock, a device, another thread. With the
// GIL held the wait would stop every other thread of the program, and could deadlock with one that needs the GIL to
// finish.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// The GIL is held where one is made and where it is destroyed, on the same thread. In between no Python object is
// touched, not even a reference count, as other threads run.
class OthersRun {
 public:
  OthersRun() : state_(PyEval_SaveThread()) {}
  ~OthersRun() { PyEval_RestoreThread(state_); }
  OthersRun(const OthersRun&) = delete;
  OthersRun& operator=(const OthersRun&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace finitude::bindings
