// The GIL, given up while a thread of ours waits for something that is not Python.
#pragma once

#include <Python.h>

namespace finitude::bindings {

// GIL held at both ends; no Python object is touched in between.
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
