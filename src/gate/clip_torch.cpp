// Clipping multiplies all gradients by one number, or cuts values. Either may turn a bad gradient into NaN everywhere,
// or into finite numbers: the evidence has to be read before. A finite norm proves that all elements are finite, so
// that in a healthy step the scan is replaced by a look at one number.
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <string_view>
#include <unordered_map>

#include "base/immortal.h"
#include "gate/clip_torch.h"
#include "gate/gate_cuda_torch.h"
#include "gate/gradients_torch.h"
#include "gate/listeners.h"
#include "gate/marks_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/places_torch.h"
#include "pyhost/python_compat.h"

namespace finitude::bindings {

namespace {

// Code objects that were met as callers, known again by address. Each is held, else its address might be used again.
base::Immortal<Object> norm_type_caller, clip_caller;

// By ordinal of the optimizer; only of those few whose norm overflowed.
std::unordered_map<std::uint32_t, double>& norms() {
  // Never freed: a hook may use it while the process ends.
  static auto* const all = new std::unordered_map<std::uint32_t, double>();
  return *all;
}

// The norm of finite gradients overflowed: clipping turns all of them into zeros. Noted at every optimizer that steps
// one of them, and reported when it steps. `parameters` is a list.
void note_overflow(PyObject* parameters, double in_float64) {
  record::Stack stack;
  const bool placed = current_place(&stack) && !stack.frames.empty();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
    PyObject* p = PyList_GET_ITEM(parameters, i);
    if (!is_tensor_object(p)) continue;
    auto [it, last] = live().owner.equal_range(THPVariable_Unpack(p).unsafeGetTensorImpl());
    for (; it != last; ++it) {
      it->second.first->norm_overflow = true;
      norms()[it->second.first->ordinal] = in_float64;
      it->second.first->norm_place = placed ? stack.frames.front() : record::Frame();
    }
  }
}

// The `norm_type` with which the running clip_grad_norm_ computed its norm, read from its local variable: the function
// that is replaced here does not get it. 0 if another function calls, whose norm may be anything. (_get_total_norm
// takes whatever float() takes.)
// The index of the variable is kept for one code object, so that a healthy step compares no strings.
double norm_type_of_caller() {
  RawFrame* frame = current_frame();
  static int index = -1;
  if (frame == nullptr) return 0;
  PyCodeObject* code = frame_code(frame);
  if (Object& known = *norm_type_caller; known.get() != reinterpret_cast<PyObject*>(code)) {
    index = -1;
    for (int i = 0; i < code_fast_count(code); ++i) {
      if (PyUnicode_CompareWithASCIIString(fast_name(code, i), "norm_type") == 0) index = i;
    }
    known = Object::share(reinterpret_cast<PyObject*>(code));
  }
  PyObject* type = index < 0 ? nullptr : frame_fast(frame)[index];
  if (type == nullptr) return 0;
  if (PyFloat_CheckExact(type)) return PyFloat_AS_DOUBLE(type);
  const Object number = Object::take(PyNumber_Float(type));
  const double value = number ? PyFloat_AS_DOUBLE(number.get()) : 0;
  PyErr_Clear();
  return value;
}

// The 2-norm of these gradients, with squares and sum in float64. 0 if it is not known, or overflows too. Only after
// an overflow: it reads all gradients.
double norm_in_float64(PyObject* parameters) {
  double squares = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
    const at::Tensor* grad = gradient_of(PyList_GET_ITEM(parameters, i));
    if (grad == nullptr) continue;
    observe::TensorView v;
    if (!observe::view_of(*grad->unsafeGetTensorImpl(), &v)) return 0;
    squares += observe::full(v).sum_sq;
  }
  return std::isfinite(squares) ? std::sqrt(squares) : 0;
}

// 0 of what is no plain number.
double number_of(PyObject* value) {
  if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
  if (!PyLong_CheckExact(value)) return 0;
  const double number = PyLong_AsDouble(value);
  if (number == -1 && PyErr_Occurred()) PyErr_Clear();
  return number > 0 ? number : 0;
}

// Is the caller torch's own clip_grad_norm_, with the norm of these gradients? Its code object is recognized once by
// file and name, and then by address.
bool is_called_by_torch() {
  RawFrame* frame = current_frame();
  if (frame == nullptr) return false;
  PyCodeObject* const code = frame_code(frame);
  Object& known = *clip_caller;
  if (known.get() == reinterpret_cast<PyObject*>(code)) return true;
  const char* const file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  const bool is = file != nullptr && std::string_view(file).ends_with("torch/nn/utils/clip_grad.py") &&
                  PyUnicode_CompareWithASCIIString(code->co_name, "clip_grad_norm_") == 0;
  if (is) known = Object::share(reinterpret_cast<PyObject*>(code));
  return is;
}

// Clipping multiplies every element by one number. If that is NaN or Inf no element stays finite, so the first element
// shows it.
bool was_poisoned(PyObject* parameters) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
    const at::Tensor* grad = gradient_of(PyList_GET_ITEM(parameters, i));
    observe::TensorView v;
    if (grad == nullptr || !observe::view_of(*grad->unsafeGetTensorImpl(), &v) || v.numel == 0) continue;
    return sense::quick_scan(v.data, 1, v.dtype).bad;
  }
  return false;
}

// What is known of the gradients of `list` after they were clipped. finite: their norm was, so no element was larger
// than it. true_norm: of an overflowed one, in float64; 0: not known.
// max_norm: what a norm of type 2 was clipped to; 0: it was another one. was_read: the marks have what they were
// before. The marks get the new versions, so that the step does not read gradients again that only clipping has
// changed.
void note_clipped(PyObject* list, bool finite, bool was_read, bool overflowed, double norm, double true_norm,
                  double max_norm) {
  Live& l = live();
  if (finite && was_poisoned(list)) {
    finite = false;
    scan_before_write(list);  // the norm was finite, what it was multiplied by is not
  }
  bool any_bad = false, any_owned = false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    const at::Tensor* grad = gradient_of(PyList_GET_ITEM(list, i));
    if (grad == nullptr) continue;
    auto [it, last] = l.owner.equal_range(THPVariable_Unpack(PyList_GET_ITEM(list, i)).unsafeGetTensorImpl());
    l.counters.gradients_scanned += finite && !was_read && it != last;
    for (; it != last; ++it) {
      auto& [owner, index] = it->second;
      if (index >= owner->marks.size()) continue;
      GradMark& mark = owner->marks[index];
      if (finite) {
        mark.state = GradMark::kClean;
        mark.bound = norm;
        if (!was_read) {
          mark.absmax = norm;
          mark.norm = -1;
        }
        mark.is_unscaled = owner->is_unscaled;
      }
      any_owned = true;
      any_bad |= mark.state > GradMark::kClean;
      mark.grad = grad->unsafeGetTensorImpl();  // clipping's own write is not a change of the gradient
      mark.version = version_of(*mark.grad);
      owner->clip_proves = finite;
      owner->clip_norm = finite && max_norm > 0 ? norm : 0;
      owner->clip_max = max_norm;
    }
  }
  if (any_owned && overflowed && !any_bad) note_overflow(list, true_norm);
}

// A finite norm says nothing of single parameters. For their course, and for warnings that name a layer, some steps are
// read whole. Of the first optimizer that owns one of them.
bool is_read_step(PyObject* list) {
  constexpr std::uint64_t kReadEvery = 16;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* p = PyList_GET_ITEM(list, i);
    if (!is_tensor_object(p)) continue;
    const auto found = live().owner.find(THPVariable_Unpack(p).unsafeGetTensorImpl());
    if (found != live().owner.end()) return found->second.first->step % kReadEvery == 0;
  }
  return false;
}

}  // namespace

double overflowed_norm(const OptimizerEntry& entry) {
  const auto found = norms().find(entry.ordinal);
  return found == norms().end() ? 0 : found->second;
}

bool keeps_finite(PyObject* bound) {
  if (PyLong_CheckExact(bound)) return true;
  return PyFloat_Check(bound) && PyFloat_AS_DOUBLE(bound) >= 0;
}

// The original is called exactly once on each path, with the caller's arguments; its result or error is returned. On a
// device nothing here waits: the norm is read by the device when the scan runs (options.unless_finite).
PyObject* clip_with_norm(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Metered hook(Piece::kHook);
  Live& l = live();
  PyObject* const original = l.original_clip.get();
  if (l.devices != 0 && l.on && nargs >= 3 && PyList_Check(args[0]) && is_tensor_object(args[2]) &&
      is_watched_device(*THPVariable_Unpack(args[2]).unsafeGetTensorImpl())) {
    const bool proves = keeps_finite(args[1]);
    as_guest([&] { before_device_write(args[0], proves && norm_type_of_caller() > 0 ? args[2] : nullptr); });
    PyObject* result = PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
    if (result == nullptr) return result;
    as_guest([&] {
      listeners().clipped(original, args, nargs, kwnames, is_called_by_torch() ? norm_type_of_caller() : 0);
      if (proves) after_device_write(args[0]);  // else they are looked at once more at the step
    });
    return result;
  }
  bool finite = false, was_read = false, overflowed = false;
  double norm = 0;  // no element is larger
  double true_norm = 0;
  double max_norm = 0;
  PyObject* list = l.on && nargs >= 1 ? (PyList_Check(args[0]) ? args[0] : nullptr) : nullptr;
  as_guest([&] {
    observe::TensorView v;
    if (l.on && nargs >= 3 && is_tensor_object(args[2]) &&
        observe::view_of(*THPVariable_Unpack(args[2]).unsafeGetTensorImpl(), &v)) {
      const sense::Quick q = observe::quick(v);
      // Norms of a type above 0 are NaN or Inf as soon as one element is. Type 0 counts, and the negative ones lose an
      // Inf.
      overflowed = q.bad;
      const double type = norm_type_of_caller();
      finite = !q.bad && type > 0;
      norm = q.absmax;
      if (type == 2) max_norm = number_of(args[1]);
    }
    if (list == nullptr) return;
    was_read = !finite || is_read_step(list);
    if (was_read) scan_before_write(list);
    if (finite) return;
    // Clipping writes zeros over them. Where one of them is bad itself the norm is of no interest.
    if (overflowed && is_called_by_torch() && norm_type_of_caller() == 2) true_norm = norm_in_float64(list);
  });
  PyObject* result;
  {
    const Metered program(Piece::kProgram);
    result = PyObject_Vectorcall(original, args, static_cast<size_t>(nargs), kwnames);
  }
  if (result == nullptr || list == nullptr) return result;
  as_guest([&] {
    listeners().clipped(original, args, nargs, kwnames, is_called_by_torch() ? norm_type_of_caller() : 0);
    note_clipped(list, finite, was_read, overflowed, norm, true_norm, max_norm);
  });
  return result;
}

// `parameters` is iterated, so a generator would be used up: callers pass a list. Gradients of optimizers with a
// device are left to before_device_write. An error of the iterator is cleared; the original will meet it again.
void scan_before_write(PyObject* parameters) {
  const Metered gradients(Piece::kGradients);
  Live& l = live();
  const Object iterator = Object::take(PyObject_GetIter(parameters));
  if (!iterator) {
    PyErr_Clear();
    return;
  }
  while (const Object p = Object::take(PyIter_Next(iterator.get()))) {
    const at::Tensor* grad = gradient_of(p.get());
    if (grad != nullptr) {
      auto [it, last] = l.owner.equal_range(THPVariable_Unpack(p.get()).unsafeGetTensorImpl());
      if (it != last && !it->second.first->device) {
        ++l.counters.gradients_scanned;
        for (; it != last; ++it) {
          auto& marks = it->second.first->marks;
          if (marks.size() <= it->second.second) marks.resize(it->second.second + 1);
          GradMark& now = marks[it->second.second];
          judge_again(*it->second.first, it->second.second, *grad, false);
          if (now.state > GradMark::kClean) note_bad_marks(*it->second.first, false);
        }
      }
    }
  }
  PyErr_Clear();
}

}  // namespace finitude::bindings
