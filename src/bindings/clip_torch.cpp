// Gradients are looked at before clipping rewrites them.
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/meter.h"
#include "bindings/stack_torch.h"
#include "bindings/window_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::bindings {

PyObject* clip_with_norm(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const Metered hook(Piece::kHook);
  Live& l = live();
  bool finite = false;
  double norm = 0;  // no element is larger
  if (l.on && nargs >= 3 && THPVariable_Check(args[2])) {
    observe::TensorView v;
    if (observe::view_of(*THPVariable_Unpack(args[2]).unsafeGetTensorImpl(), &v)) {
      const sense::Quick q = observe::quick(v);
      finite = !q.bad;
      norm = q.absmax;
    }
  }
  PyObject* list = l.on && nargs >= 1 ? (PyList_Check(args[0]) ? args[0] : nullptr) : nullptr;
  if (list != nullptr && !finite) scan_before_write(list);
  PyObject* result;
  {
    const Metered program(Piece::kProgram);
    result = PyObject_Vectorcall(original_clip, args, static_cast<size_t>(nargs), kwnames);
  }
  if (result == nullptr || list == nullptr) return result;
  bool any_bad = false;
  OptimizerEntry* owner = nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    const at::Tensor* grad = gradient_of(PyList_GET_ITEM(list, i));
    if (grad == nullptr) continue;
    const auto it = l.owner.find(THPVariable_Unpack(PyList_GET_ITEM(list, i)).unsafeGetTensorImpl());
    if (it == l.owner.end() || it->second.second >= it->second.first->marks.size()) continue;
    owner = it->second.first;
    GradMark& mark = owner->marks[it->second.second];
    if (finite) {
      mark.state = GradMark::kClean;
      mark.absmax = norm;
      ++l.counters.gradients_scanned;
    }
    any_bad |= mark.state > GradMark::kClean;
    mark.grad = grad->unsafeGetTensorImpl();  // clipping's own write is not a change of the gradient
    mark.version = version_of(*mark.grad);
    owner->clip_proves = finite;
  }
  if (owner != nullptr && !finite && !any_bad) {
    owner->norm_overflow = true;
    std::vector<record::Frame> frames;
    std::string module;
    owner->norm_place = current_place(&frames, &module) && !frames.empty() ? frames.front() : record::Frame();
  }
  return result;
}

void scan_before_write(PyObject* parameters) {
  const Metered gradients(Piece::kGradients);
  Live& l = live();
  PyObject* iterator = PyObject_GetIter(parameters);
  if (iterator == nullptr) {
    PyErr_Clear();
    return;
  }
  while (PyObject* p = PyIter_Next(iterator)) {
    const at::Tensor* grad = gradient_of(p);
    if (grad != nullptr) {
      const auto it = l.owner.find(THPVariable_Unpack(p).unsafeGetTensorImpl());
      if (it != l.owner.end()) {
        auto& marks = it->second.first->marks;
        if (marks.size() <= it->second.second) marks.resize(it->second.second + 1);
        marks[it->second.second] = judge(*grad);
        ++l.counters.gradients_scanned;
      }
    }
    Py_DECREF(p);
  }
  PyErr_Clear();
  Py_DECREF(iterator);
}

}  // namespace finitude::bindings
