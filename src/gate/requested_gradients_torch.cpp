#include "gate/requested_gradients_torch.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <vector>

#include "gate/dropped_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/script_nan_checks_torch.h"
#include "gate/state_torch.h"
#include "observe/concrete_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

constexpr Py_ssize_t kCreateGraph = 3, kInputs = 4;  // arguments of _engine_run_backward

// GIL held.
std::uint64_t asked_row = 0;  // calls that were dropped since the last step that was applied
bool row_is_reported = false;

// What holds the values of a tensor that transforms of torch.func have wrapped. The reference is valid as long as
// `tensor`.
const at::Tensor& plain_of(const at::Tensor& tensor) {
  const at::Tensor* inner = &tensor;
  while (inner->defined()) {
    if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(*inner))
      inner = &wrapper->value();
    else if (const auto* batched = at::functorch::maybeGetBatchedImpl(*inner))
      inner = &batched->value();
    else
      break;
  }
  return *inner;
}

bool is_bad(const at::Tensor& value) {
  observe::TensorView v;
  return value.defined() && observe::view_of(*value.unsafeGetTensorImpl(), &v) && observe::quick(v).bad;
}

// The watched parameter that an input is; or, under torch.func, in whose memory it lies: functional_call gets copies
// without a graph. Null: none. The pointer is not owned. The common case is one lookup by address.
const c10::TensorImpl* watched_parameter(const at::Tensor& input, bool is_wrapped) {
  const auto& owner = live().owner;
  const at::Tensor& plain = plain_of(input);
  if (!plain.defined()) return nullptr;
  const c10::TensorImpl* impl = plain.unsafeGetTensorImpl();
  const auto found = owner.find(impl);
  if (found != owner.end()) return is_alive(*found->second.first) ? impl : nullptr;
  if (!is_wrapped || !observe::is_concrete(*impl) || !impl->has_storage()) return nullptr;
  // Asked of the optimizers themselves: `owner` may name parameters that a program has removed from one since.
  const c10::TensorImpl* parameter = nullptr;
  for (const auto& entry : live().optimizers) {
    if (!is_alive(*entry)) continue;
    for_each_parameter(entry->self, [&](std::uint32_t, PyObject* p) {
      if (parameter != nullptr || !is_tensor_object(p)) return;
      const c10::TensorImpl* one = THPVariable_Unpack(p).unsafeGetTensorImpl();
      const bool is_same = observe::is_concrete(*one) && one->has_storage() && one->storage().data() != nullptr &&
                           one->storage().data() == impl->storage().data();
      if (is_same) parameter = one;
    });
  }
  return parameter;
}

// Is any tensor of a tuple of roots bad?
bool any_bad_root(PyObject* roots) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); ++i) {
    PyObject* root = PyTuple_GET_ITEM(roots, i);
    if (is_tensor_object(root) && is_bad(plain_of(THPVariable_Unpack(root)))) return true;
  }
  return false;
}

// The first tensor of a tuple, or null. Borrowed.
const at::Tensor* first_of(PyObject* tuple) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) == 0) return nullptr;
  PyObject* first = PyTuple_GET_ITEM(tuple, 0);
  return is_tensor_object(first) ? &THPVariable_Unpack(first) : nullptr;
}

}  // namespace

// Cheap tests come first, since gradient penalties and meta learning call autograd.grad in each step: of these, calls
// with create_graph are the script's own intermediate results and return early. An earlier value that waits is settled
// here, as by a backward.
bool note_asked(PyObject* const* args, Py_ssize_t nargs) {
  if (nargs <= kInputs || !watches_checks() || live().closure_depth > 0) return false;
  const at::Tensor* first = first_of(args[0]);
  const at::Tensor* input = first_of(args[kInputs]);
  if (first == nullptr || input == nullptr) return false;
  const bool is_wrapped = &plain_of(*first) != first;
  if (!is_wrapped && args[kCreateGraph] == Py_True) return false;  // torch.func always asks for it
  if (is_wrapped && !any_checked() && !any_bad_root(args[0])) return false;
  const c10::TensorImpl* parameter = watched_parameter(*input, is_wrapped);
  if (parameter == nullptr) return false;
  if (any_checked() && settle_checks(args[0]) != 0) ++asked_row;
  bool any_bad = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); ++i) {
    PyObject* object = PyTuple_GET_ITEM(args[0], i);
    if (!is_tensor_object(object)) continue;
    const at::Tensor& root = THPVariable_Unpack(object);
    if (!is_bad(plain_of(root))) continue;
    any_bad = true;
    enter_asked(root, plain_of(root), parameter);
  }
  return !is_wrapped && !any_bad;
}

// The first bad gradient is enough: one call is one event.
void note_answered(PyObject* const* args, PyObject* result) {
  if (!PyTuple_Check(result)) return;
  const Py_ssize_t n = std::min(PyTuple_GET_SIZE(result), PyTuple_GET_SIZE(args[kInputs]));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* gradient = PyTuple_GET_ITEM(result, i);
    PyObject* input = PyTuple_GET_ITEM(args[kInputs], i);
    if (!is_tensor_object(gradient) || !is_tensor_object(input) || !is_bad(THPVariable_Unpack(gradient))) continue;
    const auto found = live().owner.find(THPVariable_Unpack(input).unsafeGetTensorImpl());
    if (found == live().owner.end()) continue;
    return enter_asked(*first_of(args[0]), THPVariable_Unpack(gradient), found->first, found->second.second);
  }
}

// Called after the program's call has returned. False: an error is set, and the caller drops the result.
bool report_asked_row() {
  if (row_is_reported || !is_long_row(asked_row)) return true;
  const Object count = Object::take(PyLong_FromUnsignedLongLong(asked_row));
  const Object r = count ? call_cold("on_asked_row", count.get()) : Object();
  if (r) row_is_reported = r.get() == Py_True;
  return static_cast<bool>(r);
}

void end_asked_row() noexcept {
  asked_row = 0;
  row_is_reported = false;
}

}  // namespace finitude::bindings
