// Losses that the script itself finds to be bad and then drops before backward is called: `if torch.isnan(loss): continue`.
//
// Every such check goes through one of a few operators on the CPU: a comparison of a tensor with itself (isfinite, isnan,
// x != x), isinf, or the reading of one element (item, float, math.isnan). What looks at loss.detach() looks at the loss. Kernels of ours stand in for those of torch there: they
// call them, and look twice only at a result that is not finite. What becomes of the value is seen at the next outermost
// backward: where its whole graph was made after the value's, the script has dropped the step that the value belongs to.
// A value that is only logged, or a term that is left out, stands beside a graph that is used.
#pragma once

#include <Python.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace finitude::bindings {

// A value that is not finite, is part of a graph and was looked at by the script.
struct CheckedLoss {
  double value = 0;
  std::uint64_t sum = 0;                      // checksum of its bytes
  std::uint64_t first_node = 0, last_node = 0;  // the range of autograd sequence numbers of its graph
  std::vector<const c10::TensorImpl*> leaves;
  at::Tensor held;                            // only while a trace is taken: it becomes a sink once it is dropped
};

// Puts the stand-ins in or takes them out. Any thread may call the operators meanwhile.
void watch_checks(bool on);

// Before the notes of an outermost backward (or GradScaler.scale), given its roots, a tensor or a tuple: settles which values
// were dropped. With the GIL held, and only where any_checked() says so.
void settle_checks(PyObject* roots);
bool any_checked() noexcept;

// A bad root is given to backward: looking at it afterwards, or at what was computed from it, is no news.
void note_given(const at::Tensor& root);

// Was a value dropped since these were last asked for?
bool any_dropped_check() noexcept;

PyMethodDef* checked_methods();

}  // namespace finitude::bindings
