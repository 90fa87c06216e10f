// Rewind by return: the user's Python stack is remembered and put back. A StackSnapshot remembers the names and the
// running iterators of the user's frames; restored at the same call, simply returning continues as it did the
// first time. Everything here is called with the GIL held, leaves no Python exception behind (one that was
// set stays set) and throws nothing.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "pyhost/frames_code.h"
#include "rewind/frames_values.h"

namespace finitude::bindings {

struct FrameRules {
  // Folders whose code is not the user's: torch, finitude, the standard library. site-packages below them is.
  std::vector<std::string> library_prefixes;
  PyTypeObject* tensor_type = nullptr;            // torch.Tensor's base; subclasses count
  std::vector<PyTypeObject*> external_iterators;  // positions that the caller sets back; subclasses count
  PyTypeObject* optimizer_type = nullptr;         // torch.optim.Optimizer; subclasses count
  std::vector<PyObject*> module_calls;            // code objects of nn.Module._call_impl
};
// Holds what they name for good.
void set_frame_rules(const FrameRules& rules) noexcept;

struct SnapshotOptions {
  KeepStrong keep_strong = nullptr;     // null: every tensor is remembered by weak reference
  MakeStandIn make_stand_in = nullptr;  // null: a name whose tensor died is left unset
  void* context = nullptr;
  bool keep_all = false;  // everything is held, until clear() or the next take()
};

struct RewindVerdict {
  bool possible = false;
  bool jumps = false;  // it would go on at another call than the present one
  std::string reason;  // why not
  explicit operator bool() const { return possible; }
};

class StackSnapshot {
 public:
  StackSnapshot();
  ~StackSnapshot();
  StackSnapshot(const StackSnapshot&) = delete;
  StackSnapshot& operator=(const StackSnapshot&) = delete;

  // Remembers the stack from the innermost user frame outward. To be called in every step: what has not
  // changed since the last time costs a comparison.
  void take(const SnapshotOptions& options) noexcept;
  void clear() noexcept;
  // Is the present call the same place, reached the same way, with everything that moved able to go back? Other
  // calls in the same functions do as well, where this version of Python lets a frame go on elsewhere.
  RewindVerdict can_restore() noexcept;
  // Puts it back; on false nothing was changed. The caller then returns without running user code.
  bool restore(std::string* why) noexcept;
  // Names that the last restore() left unset because their value had died.
  const std::vector<std::string>& unset_names() const;
  // The function whose name each of them is, which lives for good; null for one of a module or a class body.
  const std::vector<PyCodeObject*>& unset_in() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What the user's running frames draw from without a name for it: the iterators of their loops, on the value stack;
// borrowed.
void running_iterators(std::vector<PyObject*>* out) noexcept;

}  // namespace finitude::bindings
