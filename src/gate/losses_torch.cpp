#include "gate/losses_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "gate/gate_cuda_torch.h"
#include "gate/listeners.h"
#include "gate/script_nan_checks_torch.h"
#include "gate/shared_gradients_torch.h"
#include "gate/state_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/tensor_subclass_torch.h"

namespace finitude::bindings {
namespace {

// A bound for programs whose optimizer never steps: the older half is dropped then.
constexpr std::size_t kMaxNotes = 4096;

// The leaf tensors below `root`, by their AccumulateGrad nodes: they show whose parameters a bad loss belongs to.
// Returns a hash of the kinds of nodes in the graph, whatever their number, which may change with the data: a repeat
// of an explained alarm is recognized by it. Only for bad losses, since it walks the whole graph. The walk is
// iterative and bounded; nodes live as long as `root`.
std::uint64_t collect_leaves(const at::Tensor& root, LossLeaves* leaves) {
  constexpr std::size_t kMaxNodes = 1'000'000;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> todo;
  std::set<std::string> kinds;
  const auto fn = root.grad_fn();
  if (fn)
    todo.push_back(fn.get());
  else
    leaves->insert(root);
  while (!todo.empty() && seen.size() < kMaxNodes) {
    const auto* node = todo.back();
    todo.pop_back();
    if (!seen.insert(node).second) continue;
    if (const auto* acc = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      leaves->insert(acc->variable);
    }
    kinds.insert(node->name());
    for (const auto& edge : node->next_edges()) {
      if (edge.function) todo.push_back(edge.function.get());
    }
  }
  std::string all;
  for (const std::string& kind : kinds) all += kind + ' ';
  return std::hash<std::string>()(all);
}

// The reference is valid until the next note. A healthy step reuses capacity that close_window has kept.
LossNote& add_note() {
  Live& l = live();
  if (l.losses.size() >= kMaxNotes) l.losses.erase(l.losses.begin(), l.losses.begin() + kMaxNotes / 2);
  LossNote& note = l.losses.emplace_back();
  note.serial = ++l.next_serial;
  note.thread = this_thread();
  note.in_closure = l.closure_depth > 0;
  ++l.counters.losses;
  return note;
}

// Of a root with one element; of a complex one, the worse or larger of its parts. float32 is read directly: it is the
// loss of almost every step.
double number_of(const observe::TensorView& v) {
  if (v.dtype == sense::DType::kFloat32) return *reinterpret_cast<const float*>(v.data);
  const sense::Health h = observe::full(v);
  return h.nan ? NAN : h.pos_inf ? INFINITY : h.neg_inf ? -INFINITY : h.max;
}

// Elements of a non-scalar root count only where their grad argument is not zero: a script that masks a bad element
// there has handled it. Rare: converts the grad argument to float64.
bool root_is_bad(const observe::TensorView& root, PyObject* grad) {
  const sense::Health h = observe::full(root);
  if (h.ok()) return false;
  observe::TensorView g;
  if (root.numel <= 1 || grad == nullptr || !is_tensor_object(grad) ||
      !observe::view_of(*local_of(THPVariable_Unpack(grad)).unsafeGetTensorImpl(), &g) || g.numel != root.numel) {
    return true;
  }
  const at::Tensor values = local_of(THPVariable_Unpack(grad)).detach().reshape({-1}).to(at::kDouble).contiguous();
  const double* w = values.const_data_ptr<double>();
  if (root.dtype == sense::DType::kOther || !root.contiguous) return true;
  const auto size = static_cast<std::size_t>(sense::info(root.dtype).size_bytes) *
                    static_cast<std::size_t>(sense::info(root.dtype).reals_per_element);
  for (std::int64_t i = 0; i < root.numel; ++i) {
    if (w[i] != 0 && sense::quick_scan(root.data + static_cast<std::size_t>(i) * size, 1, root.dtype).bad) return true;
  }
  return false;
}

// One root of a backward. `object` and `grad` are borrowed. No reference to the root is kept, so that its graph is
// freed when the script frees it; what is needed later is copied into the note.
void note_root(PyObject* object, PyObject* grad, bool scaled) {
  if (!is_tensor_object(object)) return;  // a GradientEdge has no value
  const at::Tensor& root = local_of(THPVariable_Unpack(object));
  if (live().devices != 0 && root.defined() && is_watched_device(*root.unsafeGetTensorImpl())) {
    // On a device: read in stream order, and known later. The optimizers below it are not looked up.
    LossNote& note = add_note();
    note.scaled = scaled;
    note.on_device = true;
    note.micro_batch = static_cast<std::uint32_t>(-1);
    if (root.numel() == 1 || grad == nullptr || grad == Py_None) note_device_root(root, &note);
    if (note.in_closure || is_elsewhere(note)) return;
    if (observe::TapeRecorder::get().on()) observe::TapeRecorder::get().add_outcome("loss", "loss", root);
    // A step that runs again waits for the device anyway.
    if (observe::Tracer::get().on() && (listeners().records_losses() || !observe::all_finite(root))) {
      observe::Tracer::get().add_sink("loss", "loss", *root.unsafeGetTensorImpl(), 0);
    }
    return;
  }
  observe::TensorView v;
  if (!root.defined() || !observe::view_of(*root.unsafeGetTensorImpl(), &v)) return;
  LossNote& note = add_note();
  listeners().loss_noted(note.serial, root);
  note.scaled = scaled;
  note.micro_batch = static_cast<std::uint32_t>(-1);
  note.sum = observe::checksum(v);
  if (v.numel == 1) {
    note.value = number_of(v);
    note.bad = !std::isfinite(note.value);
  } else {
    note.bad = observe::quick(v).bad && root_is_bad(v, grad);
    note.value = note.bad ? NAN : 0;
  }
  observe::TensorView g;
  note.grad_bad = grad != nullptr && is_tensor_object(grad) &&
                  observe::view_of(*local_of(THPVariable_Unpack(grad)).unsafeGetTensorImpl(), &g) &&
                  observe::quick(g).bad;
  if (note.bad) {
    live().bad_graph = collect_leaves(root, &note.leaves);
    // The script may look at this value afterwards: that is no second event.
    note_given(root);
  }
  if (note.in_closure || is_elsewhere(note)) return;
  if (observe::TapeRecorder::get().on()) observe::TapeRecorder::get().add_outcome("loss", "loss", root);
  // While armed, the loss is a sink at the time it is handed over.
  listeners().loss_given(note.serial, root, note.bad);
  if ((note.bad || listeners().records_losses()) && observe::Tracer::get().on()) {
    observe::Tracer::get().add_sink("loss", "loss", *root.unsafeGetTensorImpl(), 0);
  }
}

}  // namespace

// `roots` is a tuple or one tensor, `grads` a tuple of the same length, or null, or something that is ignored.
void note_roots(PyObject* roots, PyObject* grads) {
  const Metered loss(Piece::kLoss);
  Live& l = live();
  if (l.scaled_pending) {  // the unscaled value was judged; the scaled one may overflow by design
    l.scaled_pending = false;
    return;
  }
  if (any_checked()) settle_checks(roots);
  if (!PyTuple_Check(roots)) {
    note_root(roots, grads, false);
    return;
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(roots);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* grad =
        grads != nullptr && PyTuple_Check(grads) && PyTuple_GET_SIZE(grads) == n ? PyTuple_GET_ITEM(grads, i) : nullptr;
    note_root(PyTuple_GET_ITEM(roots, i), grad, false);
  }
}

// A reentrant checkpoint has its parameters below its own backward, so the walk from the outer loss does not reach
// them. Only of a bad loss; a finite one needs no leaves.
void note_inner_roots(PyObject* roots) {
  Live& l = live();
  if (l.losses.empty() || !l.losses.back().bad || !PyTuple_Check(roots)) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); ++i) {
    PyObject* root = PyTuple_GET_ITEM(roots, i);
    if (is_tensor_object(root)) collect_leaves(THPVariable_Unpack(root), &l.losses.back().leaves);
  }
}

// Called before the product with the scale exists. The backward that follows is given the product, which is not
// judged.
void note_scaled(PyObject* loss) {
  if (any_checked()) settle_checks(loss);
  note_root(loss, nullptr, true);
  live().scaled_pending = true;
}

}  // namespace finitude::bindings
