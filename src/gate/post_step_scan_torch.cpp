// Reads what an optimizer wrote. Dicts of the program are read with PyDict_GetItem and PyDict_Next, which run no code
// of the program as long as keys are plain tensors or strings; errors are cleared at the end of each walk, since a hook
// may not leave one.
#include "gate/post_step_scan_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/checksum.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/tensor_subclass_torch.h"

namespace finitude::bindings {
namespace {

// In bytes, of the whole process: the limit on copies, and the most that was wanted when a copy did not fit. GIL held.
std::size_t budget = 0, shortfall = 0;

// optimizer.state is a defaultdict: looked at with PyDict_GetItem, which makes no entries. Empty: it is no dict.
Object state_of(PyObject* optimizer) {
  static PyObject* kState = PyUnicode_InternFromString("state");
  Object state = Object::take(PyObject_GetAttr(optimizer, kState));
  if (!state) PyErr_Clear();
  return state && PyDict_Check(state.get()) ? std::move(state) : Object();
}

// state[parameter], borrowed, or null. The hash of a tensor is its address, but torch.Tensor.__hash__ is a Python
// function: a lookup by PyDict_GetItem would call it for every parameter of every step. The known hash avoids that. A
// subclass may define another hash, so it takes the normal way.
PyObject* state_of(PyObject* state, PyObject* parameter) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(parameter));
  if (type != ParameterClass && type != THPVariableClass) return PyDict_GetItem(state, parameter);
  PyObject* found = _PyDict_GetItem_KnownHash(state, parameter, reinterpret_cast<Py_hash_t>(parameter));
  if (found == nullptr) PyErr_Clear();
  return found;
}

// Visits the tensors in state[parameter], one level deep: exp_avg, exp_avg_sq, step. References are borrowed; `visit`
// must not run Python code.
template <typename Visit>
void for_each_state_tensor(PyObject* state, PyObject* parameter, Visit&& visit) {
  PyObject* of_parameter = state != nullptr ? state_of(state, parameter) : nullptr;
  if (of_parameter == nullptr || !PyDict_Check(of_parameter)) return;
  PyObject *key, *value;
  Py_ssize_t pos = 0;
  while (PyDict_Next(of_parameter, &pos, &key, &value)) {
    if (is_tensor_object(value)) visit(THPVariable_Unpack(value));
  }
}

// A tensor that cannot be read (on a GPU, sparse, without memory) counts as healthy: a wrong alarm would stop a run.
bool is_bad(const at::Tensor& tensor) {
  observe::TensorView v;
  return tensor.defined() && observe::view_of(*local_of(tensor).unsafeGetTensorImpl(), &v) && observe::quick(v).bad;
}

// Elements [first, last) of a contiguous tensor; all of another one, as a part of it is no dense memory.
sense::Quick read(const observe::TensorView& v, std::int64_t itemsize, std::int64_t first, std::int64_t last) {
  if (!v.contiguous || v.dtype == sense::DType::kOther) return observe::quick(v);
  last = std::min(last, v.numel);
  if (first >= last) return {};
  return sense::quick_scan(v.data + first * itemsize, static_cast<std::size_t>(last - first), v.dtype);
}

// Of a tensor that cannot be read, and of integers: nothing.
std::optional<sense::Quick> read(const at::Tensor& tensor, std::int64_t first, std::int64_t last) {
  observe::TensorView v;
  if (!tensor.defined() || !observe::view_of(*local_of(tensor).unsafeGetTensorImpl(), &v)) return std::nullopt;
  if (v.dtype == sense::DType::kOther) return std::nullopt;
  return read(v, static_cast<std::int64_t>(tensor.itemsize()), first, last);
}

// Of 64 bytes in the middle, or of the first element where the memory is not dense. An update that is not zero changes
// nearly every element; those at the ends of a parameter are the likeliest to be padding.
std::uint64_t sample_of(const observe::TensorView& v, std::size_t itemsize) {
  if (v.numel == 0) return 0;
  const std::size_t size = v.contiguous ? static_cast<std::size_t>(v.numel) * itemsize : itemsize;
  const std::size_t count = std::min<std::size_t>(size, 64);
  return base::checksum(v.data + (size - count) / 2, count);
}

// torch.optim skips a parameter without a gradient: what a frozen one holds, such as a mask of -Inf, is no result of a
// step.
bool is_no_result(const OptimizerEntry& entry, PyObject* parameter) {
  return entry.in_torch && !THPVariable_Unpack(parameter).requires_grad() && gradient_of(parameter) == nullptr;
}

}  // namespace

// Stops reading at the first bad value, but walks to the end.
bool wrote_non_finite(OptimizerEntry& entry) {
  const Metered written(Piece::kWritten);
  bool bad = false;
  const Object state = state_of(entry.self);
  for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) {
    if (bad || !is_tensor_object(p) || is_no_result(entry, p)) return;
    bad = is_bad(THPVariable_Unpack(p));
    for_each_state_tensor(state.get(), p, [&](const at::Tensor& t) { bad = bad || is_bad(t); });
  });
  PyErr_Clear();
  return bad;
}

// Positions are counted in elements of the parameters, in their order; state of the same shape is read at the same
// positions. `elements` is known only after the first walk, so the first step reads nothing: it is read as a whole
// anyway.
SliceScan::SliceScan(OptimizerEntry& entry) : entry_(entry), begin_(entry.slice_at) {
  end_ = entry.elements == 0 ? 0 : begin_ + entry.elements / kRotation + 1;
  if (end_ != 0) state_ = state_of(entry.self);
}

void SliceScan::visit(PyObject* parameter) {
  const std::uint32_t index = index_++;
  if (entry_.weights.size() <= index) entry_.weights.resize(index + 1);
  if (!is_tensor_object(parameter)) return;
  const at::Tensor& p = THPVariable_Unpack(parameter);
  const auto* impl = p.unsafeGetTensorImpl();
  if (!p.defined() || !impl->has_storage()) return;
  const auto numel = static_cast<std::uint64_t>(impl->numel());
  const std::uint64_t start = seen_;
  seen_ += numel;
  const std::vector<WeightSample>& samples = entry_.samples;
  while (compared_ < samples.size() && samples[compared_].parameter < index) ++compared_;
  if (compared_ < samples.size() && samples[compared_].parameter == index) compare(p);
  if (start >= end_ || start + numel <= begin_ || is_no_result(entry_, parameter)) return;
  const auto first = static_cast<std::int64_t>(std::max(begin_, start) - start);
  const auto last = static_cast<std::int64_t>(std::min(end_, start + numel) - start);
  ReadWeight& weight = entry_.weights[index];
  if (first == 0) begin(weight, parameter);
  if (!bad_) look(weight, p, first, last);
  for_each_state_tensor(state_.get(), parameter, [&](const at::Tensor& t) {
    // State of another size has no positions: it is read when the walk passes the parameter's first element.
    const bool same_size = static_cast<std::uint64_t>(t.numel()) == numel;
    if (bad_) return;
    if (same_size) {
      const std::optional<sense::Quick> seen = read(t, first, last);
      bad_ = seen && seen->bad;
      const bool same_shape = t.dim() == p.dim();  // a step count of a parameter of one element has none
      if (seen && !bad_ && same_shape)
        weight.state_absmax = std::max(weight.state_absmax, static_cast<float>(seen->absmax));
    } else if (first == 0) {
      bad_ = is_bad(t);  // a step count, a factored moment
    }
  });
}

// Its first slice: what the step that is about to be applied changes is seen at the next one.
void SliceScan::begin(ReadWeight& weight, PyObject* parameter) {
  weight.state_absmax = -1;
  const at::Tensor* const grad = gradient_of(parameter);
  weight.small = grad != nullptr ? small_shares(*grad) : SmallShares();
  if (grad != nullptr) entry_.next_samples.push_back(sample_weight(index_ - 1, THPVariable_Unpack(parameter)));
}

void SliceScan::compare(const at::Tensor& parameter) {
  if (entry_.step != entry_.sampled_at + 1) return;
  ReadWeight& weight = entry_.weights[entry_.samples[compared_].parameter];
  weight.update = update_ratio(entry_.samples[compared_], parameter);
}

// The first slice of a parameter begins its part of a pass: what the pass before found is dropped.
void SliceScan::look(ReadWeight& weight, const at::Tensor& parameter, std::int64_t first, std::int64_t last) {
  observe::TensorView v;
  if (!observe::view_of(*local_of(parameter).unsafeGetTensorImpl(), &v)) return;
  const sense::Quick seen = read(v, static_cast<std::int64_t>(parameter.itemsize()), first, last);
  bad_ = seen.bad;
  if (first == 0) {
    const std::uint64_t sample = sample_of(v, parameter.itemsize());
    weight.has_changed = std::exchange(weight.sample, sample) != sample;
    weight.absmax = 0;
  }
  if (!bad_) weight.absmax = std::max(weight.absmax, static_cast<float>(seen.absmax));
}

// Takes the number of elements for the next step, which may differ if the program adds a group. The state dict was
// owned from the constructor on, since visit() may not look it up again.
bool SliceScan::end() {
  PyErr_Clear();
  state_ = Object();
  entry_.elements = seen_;
  entry_.samples.swap(entry_.next_samples);
  entry_.next_samples.clear();
  entry_.sampled_at = entry_.step;
  entry_.slice_at = end_ >= seen_ ? 0 : end_;
  entry_.passes += end_ != 0 && entry_.slice_at == 0;
  return bad_;
}

// Memory is kept by default: a copy before each step would allocate it each time. The references are dropped last, as
// the last one to a value that the step replaced may run code of the program, which may step again.
void UndoCopy::forget(bool memory_too) {
  const Metered undo(Piece::kUndo);
  optimizers_.clear();
  taken_ = false;
  if (memory_too) std::vector<char>().swap(bytes_);
  drop_all(&items_);
  drop_all(&attributes_);
  drop_all(&containers_);
}

// For a copy that outlives the step: numbers, bools and None only. A reference to anything else could make a cycle
// through the optimizer, which no collector sees, as this object takes no part in it.
bool UndoCopy::add_plain_attributes(PyObject* attributes) {
  Object plain = Object::take(PyDict_New());
  PyObject *key, *value;
  Py_ssize_t pos = 0;
  while (plain && PyDict_Next(attributes, &pos, &key, &value)) {
    const bool is_plain =
        value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value);
    if (is_plain && PyDict_SetItem(plain.get(), key, value) != 0) return false;
  }
  if (!plain) return false;
  attributes_.emplace_back(Object::share(attributes), std::move(plain));
  return true;
}

// Holds a reference to the tensor, so that its memory is there when it is restored. False: a floating-point or
// complex tensor that cannot be copied, so that the step could not be undone. Tensors of other dtypes that cannot be
// copied are skipped.
bool UndoCopy::add(const at::Tensor& given) {
  observe::TensorView v;
  const at::Tensor& tensor = local_of(given);
  if (!tensor.defined() || tensor.numel() == 0) return true;
  if (!observe::view_of(*tensor.unsafeGetTensorImpl(), &v)) return !tensor.is_floating_point() && !tensor.is_complex();
  items_.push_back({tensor, needed_});
  needed_ += static_cast<std::size_t>(v.end - v.begin);
  return true;
}

// Shallow: the copy owns the values, the tensors in it are copied by add().
bool UndoCopy::add_container(PyObject* container) {
  Object copy = Object::take(PyDict_Check(container) ? PyDict_Copy(container)
                                                     : PyList_GetSlice(container, 0, PyList_GET_SIZE(container)));
  if (!copy) return false;
  containers_.emplace_back(Object::share(container), std::move(copy));
  return true;
}

bool UndoCopy::add_value(PyObject* value, int depth) {
  if (is_tensor_object(value)) return add(THPVariable_Unpack(value));
  if (depth == 0) return true;
  if (PyDict_Check(value)) {
    if (!add_container(value)) return false;
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (PyDict_Next(value, &pos, &key, &item)) {
      if (!add_value(item, depth - 1)) return false;
    }
    return true;
  }
  if (!PyList_Check(value) && !PyTuple_Check(value)) return true;
  if (PyList_Check(value) && !add_container(value)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    if (!add_value(PySequence_Fast_GET_ITEM(value, i), depth - 1)) return false;
  }
  return true;
}

// State, parameters, groups and attributes of this optimizer, and of watched ones among its attributes (Lookahead
// holds the optimizer that it wraps).
bool UndoCopy::add_optimizer(PyObject* optimizer) {
  static PyObject* kParams = PyUnicode_InternFromString("params");
  constexpr int kDepth = 4;  // state, of a parameter, of a key, a list of tensors
  if (std::find(optimizers_.begin(), optimizers_.end(), optimizer) != optimizers_.end()) return true;
  optimizers_.push_back(optimizer);
  const bool is_outer = optimizers_.size() == 1;  // one that it holds steps the same parameters
  const Object state = state_of(optimizer);
  bool ok = state && add_value(state.get(), kDepth);
  ok = ok && for_each_parameter(optimizer, [&](std::uint32_t, PyObject* p) {
         if (ok && is_outer && is_tensor_object(p)) ok = add(THPVariable_Unpack(p));
       });
  const Object groups = ok ? Object::take(PyObject_GetAttrString(optimizer, "param_groups")) : Object();
  const bool is_list = groups && PyList_Check(groups.get());
  for (Py_ssize_t i = 0; ok && is_list && i < PyList_GET_SIZE(groups.get()); ++i) {
    PyObject* group = PyList_GET_ITEM(groups.get(), i);
    ok = PyDict_Check(group) && add_container(group);
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (ok && PyDict_Next(group, &pos, &key, &item)) {
      if (PyUnicode_Compare(key, kParams) != 0) ok = add_value(item, 1);
    }
  }
  const Object attributes = ok ? Object::take(PyObject_GenericGetDict(optimizer, nullptr)) : Object();
  if (attributes && PyDict_Check(attributes.get())) {
    ok = lasting_ ? add_plain_attributes(attributes.get()) : add_container(attributes.get());
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (ok && PyDict_Next(attributes.get(), &pos, &key, &item)) {
      if (find_entry(item) != nullptr) ok = add_optimizer(item);
    }
  }
  return ok;
}

// Collects first, and copies bytes only if all of it fits: `needed_` is then known also where it does not.
bool UndoCopy::take(PyObject* optimizer, std::size_t limit, bool lasting) {
  forget();
  lasting_ = lasting;
  needed_ = 0;
  if (add_optimizer(optimizer) && needed_ <= limit) {
    bytes_.resize(needed_);
    for (const Item& item : items_) {
      observe::TensorView v;
      if (!observe::view_of(*item.tensor.unsafeGetTensorImpl(), &v)) continue;
      std::memcpy(bytes_.data() + item.offset, v.data, static_cast<std::size_t>(v.end - v.begin));
    }
    taken_ = true;
  }
  PyErr_Clear();
  if (!taken_) forget();
  return taken_;
}

bool UndoCopy::has_same_values() const {
  if (!taken_) return false;
  for (const Item& item : items_) {
    observe::TensorView v;
    if (!observe::view_of(*item.tensor.unsafeGetTensorImpl(), &v)) return false;
    if (std::memcmp(bytes_.data() + item.offset, v.data, static_cast<std::size_t>(v.end - v.begin)) != 0) return false;
  }
  return true;
}

// Compares containers by identity of their values, and tensors by their bits. Does not call __eq__ of the program.
bool UndoCopy::is_current() const {
  if (!has_same_values()) return false;
  for (const auto& [held, copied] : containers_) {
    PyObject *const container = held.get(), *const copy = copied.get();
    if (PyObject_Size(container) != PyObject_Size(copy)) return false;
    if (PyList_Check(copy)) {
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(copy); ++i) {
        if (PyList_GET_ITEM(container, i) != PyList_GET_ITEM(copy, i)) return false;
      }
      continue;
    }
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (PyDict_Next(copy, &pos, &key, &item)) {
      if (PyDict_GetItem(container, key) != item) return false;
    }
  }
  return true;
}

bool UndoCopy::restore() {
  const bool done = put_back();
  forget();
  return done;
}

// Bytes first: a tensor that lost its memory (resize_(0)) stops here before any container has changed. Then the
// containers get the objects that they held, which drops entries that the step added. To drop one may run code of the
// program, which may step again: the lists are not walked over themselves.
bool UndoCopy::put_back() {
  if (!taken_) return false;
  for (const Item& item : items_) {
    observe::TensorView v;
    if (!observe::view_of(*item.tensor.unsafeGetTensorImpl(), &v)) return false;
    std::memcpy(const_cast<char*>(v.data), bytes_.data() + item.offset, static_cast<std::size_t>(v.end - v.begin));
  }
  bool ok = true;
  const auto containers = containers_, attributes = attributes_;
  for (const auto& [held, copied] : containers) {
    PyObject *const container = held.get(), *const copy = copied.get();
    if (PyList_Check(copy)) {
      ok = PyList_SetSlice(container, 0, PyList_GET_SIZE(container), copy) == 0 && ok;
      continue;
    }
    PyDict_Clear(container);
    ok = PyDict_Update(container, copy) == 0 && ok;
  }
  for (const auto& [container, plain] : attributes) ok = PyDict_Update(container.get(), plain.get()) == 0 && ok;
  PyErr_Clear();
  return ok;
}

void set_undo_budget(std::size_t size_bytes) noexcept { budget = size_bytes; }

// The budget is shared by all optimizers: what others hold is subtracted. An optimizer that does not fit gives its
// buffer back.
bool prepare_undo(OptimizerEntry& entry) {
  if (entry.undo_held) return true;
  if (budget == 0) return false;
  const Metered undo(Piece::kUndo);
  std::size_t used = 0;
  for (const auto& e : live().optimizers) {
    if (e.get() != &entry && e->undo) used += e->undo->needed();
  }
  if (!entry.undo) entry.undo = std::make_shared<UndoCopy>();
  if (entry.undo->take(entry.self, budget - std::min(used, budget))) return true;
  shortfall = std::max(shortfall, used + entry.undo->needed());
  entry.undo.reset();
  return false;
}

bool undo_step(OptimizerEntry& entry) { return entry.undo && entry.undo->restore(); }

// For a step whose closure may turn out to be bad after the class has moved its weights.
bool hold_undo(OptimizerEntry& entry) {
  if (!entry.undo) entry.undo = std::make_shared<UndoCopy>();
  entry.undo_held = entry.undo->take(entry.self, SIZE_MAX);
  return entry.undo_held;
}

void release_undo(OptimizerEntry& entry) {
  if (!std::exchange(entry.undo_held, false)) return;
  entry.undo.reset();
}

std::size_t undo_shortfall() noexcept { return shortfall; }

}  // namespace finitude::bindings
