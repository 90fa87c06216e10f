// Clipping of gradients: they are looked at before it rewrites them.
#pragma once

#include "gate/state_torch.h"

namespace finitude::bindings {

// The norm of the gradients of that optimizer as it is in float64, where the last clipping of them overflowed; 0: not
// known.
double overflowed_norm(const OptimizerEntry& entry);

// A bound of clipping that leaves finite gradients finite: a number that is not NaN and not negative. A tensor is not
// asked, it might have to be waited for.
bool keeps_finite(PyObject* bound);
// torch.nn.utils.clip_grad._clip_grads_with_norm_: a finite norm proves the gradients finite; else they are scanned
// now.
PyObject* clip_with_norm(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// Scans the gradients of these parameters (an iterable of tensors) before something rewrites them.
void scan_before_write(PyObject* parameters);

}  // namespace finitude::bindings
