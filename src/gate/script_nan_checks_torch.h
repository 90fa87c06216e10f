// Losses that the script itself finds to be bad and then drops before backward is called: `if torch.isnan(loss):
// continue`.
//
// Python code looks at a value through one of a few methods and functions of torch (check_methods_torch.h): isnan,
// isfinite, a comparison, the reading of one element (item, float, math.isnan). What looks at loss.detach() looks at
// the loss. Only a value that is not finite is noted. What becomes of it is seen at the next outermost backward: where
// its whole graph was made after the value's, the script has dropped the step that the value belongs to. A value that
// is only logged, or a term that is not added, lies next to a graph that is used. What a model in evaluation mode
// computes is no step.
//
// Gradients that the script asks for and drops are noted in the same way: requested_gradients_torch.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <vector>

namespace finitude::bindings {

// Begins the kind of a sink, "loss" or "gradient", that the script has dropped.
inline constexpr char kDroppedByScript[] = "dropped ";

// A value that is not finite, is part of a graph and was looked at by the script.
struct CheckedLoss {
  double value = 0;
  std::uint64_t sum = 0;                        // checksum of its bytes
  std::uint64_t first_node = 0, last_node = 0;  // the range of autograd sequence numbers of its graph
  std::uint64_t step = 0;                       // of its optimizer, as it was looked at; 0 of one that is not known yet
  std::vector<const c10::TensorImpl*> leaves;
  bool is_scalar = false;       // of one element
  bool is_asked = false;        // its gradients were handed to the script
  std::int64_t parameter = -1;  // where the loss was finite: the index of the first whose gradient was not
  at::Tensor held;              // only while a trace is taken: it becomes a sink once it is dropped
};

// From here on such checks are noted, or are not. GIL held.
void watch_checks(bool on);
bool watches_checks() noexcept;

// The program is about to look at this tensor, or to make a copy of it that has no graph. It has memory of its own. GIL
// held.
void value_checked(const at::Tensor& value) noexcept;
void value_copied(const at::Tensor& value) noexcept;

// Before the notes of an outermost backward (or GradScaler.scale), given its roots, a tensor or a tuple: settles which
// values were dropped, and returns how many. With the GIL held, and only where any_checked() says so.
std::size_t settle_checks(PyObject* roots);
bool any_checked() noexcept;

// A bad root is given to backward: looking at it afterwards, or at what was computed from it, is no news.
void note_given(const at::Tensor& root);

// A bad value of which the script is handed gradients (requested_gradients_torch.h): a root, or, where that is finite,
// the gradient of the parameter of that index in its optimizer. `root`: whose graph it belongs to. GIL held.
void enter_asked(const at::Tensor& root, const at::Tensor& values, const c10::TensorImpl* parameter,
                 std::int64_t index = -1);
// A step has met the gradients that were handed out: they are its affair.
void forget_asked() noexcept;

// Was a value dropped since these were last asked for?
bool any_dropped_check() noexcept;

PyMethodDef* script_check_methods();

}  // namespace finitude::bindings
