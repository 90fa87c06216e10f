// Judging one window: losses noted at backward, gradients scanned once before anything changes them.
#pragma once

#include "gate/live_torch.h"
#include "gate/param_groups_torch.h"

namespace finitude::bindings {

struct WindowVerdict {
  bool needs_cold = false;  // something non-finite, or a rare event the Python side must hear of
  double grad_absmax = 0;
  double lr = 0;  // of the first group; what it was, where there is none
  std::uint32_t bad_gradients = 0;
  std::uint32_t laundered = 0;  // bad after backward, finite now because the script zeroed or replaced them
  bool late = false;            // what the device found will be known later
  bool scaler_skip = false;     // a GradScaler's flag on the device is set, and no loss is bad
  bool unknown = false;         // what lies on a device was not looked at
  std::uint32_t clamped = 0;    // infinite after backward, finite but not zero now
};

// The kind of a sink that is one only where nothing else of the step is bad: a gradient as backward left it, before the
// script clamped it.
inline constexpr char kLeftByBackward[] = "gradient before clamping";
// After it: the scan of optimizers whose window is expected to be complete.
void before_backward();
void after_backward();

// The gradient of a parameter, null if it has none; its version; and what one look at its values says.
const at::Tensor* gradient_of(PyObject* parameter);
using observe::version_of;
inline GradMark judge(const at::Tensor& gradient) { return observe::judge_gradient(gradient); }

// The program takes the memory of a tensor by .data or numpy(): what it writes there leaves the version as it is. A
// gradient that was seen to be clean is read again before its step. GIL held.
void gradient_escapes(const at::Tensor& tensor) noexcept;

// `may_be_late`: the verdict on gradients that lie on a device need not be known before the optimizer steps.
bool judge_window(OptimizerEntry& entry, WindowVerdict* verdict, bool may_be_late = false);
// The step before the one that a second process explains is about to be applied: its trace begins. True: it has.
bool begin_trace_of_target(const OptimizerEntry& entry);
// `may_hook`: false where torch is walking over the optimizer's hooks already.
void commit_window(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, bool may_hook = true);
// One record into the ring of steps (record::StepFlags), before the window is closed.
void record_step(const OptimizerEntry& entry, const WindowVerdict& verdict, double lr, std::uint32_t flags) noexcept;
// After the step that `commit_window` let through: the next window starts here where the step could be undone.
void finish_commit(OptimizerEntry& entry);
void close_window(OptimizerEntry& entry);

// A bound of clipping that leaves finite gradients finite: a number that is not NaN and not negative. A tensor is not
// asked, it might have to be waited for.
bool keeps_finite(PyObject* bound);
// torch.nn.utils.clip_grad._clip_grads_with_norm_: a finite norm proves the gradients finite; else they are scanned
// now.
PyObject* clip_with_norm(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// Scans the gradients of these parameters (an iterable of tensors) before something rewrites them.
void scan_before_write(PyObject* parameters);
extern PyObject* original_clip;

PyMethodDef* dropped_methods();  // dropped_torch.h

}  // namespace finitude::bindings
