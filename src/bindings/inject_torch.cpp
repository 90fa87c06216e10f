#include "bindings/inject_torch.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gate/state_torch.h"
#include "observe/concrete_torch.h"
#include "observe/made_nodes_torch.h"
#include "observe/op_info_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/traced_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

base::Immortal<py::object> the_decide;  // while the injection is on
std::uint64_t first_step = 0, last_step = 0;
std::atomic<bool> on = false;
std::atomic<std::uint64_t> runs = 0;
at::CallbackHandle handle = 0;

// What this thread is inside of.
struct Open {
  const observe::OpInfo* info = nullptr;
  bool is_node = false;
  std::uint64_t node_key = 0;
  std::string node;
  std::vector<const void*> computed_inside;  // memory that ops inside of this one have computed
};
thread_local std::vector<std::unique_ptr<Open>> open_ops;
thread_local bool inside = false;

struct Context : at::ObserverContext {
  Open* open = nullptr;
  std::vector<const c10::TensorImpl*> written;  // by the caller's leave: it owns them until the op ends
  std::vector<const void*> read;                // memory of the inputs
};

template <typename Use>
void for_each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) use(t);
  } else if (value.isOptionalTensorList()) {
    for (const auto& t : value.toOptionalTensorVector()) {
      if (t) use(*t);
    }
  }
}

const void* memory_of(const c10::TensorImpl& impl) {
  return observe::is_concrete(impl) && impl.has_storage() ? impl.storage().unsafeGetStorageImpl() : nullptr;
}

bool can_hold(const c10::TensorImpl& impl) {
  return observe::is_concrete(impl) && impl.has_storage() && impl.numel() > 0 &&
         (at::isFloatingType(c10::typeMetaToScalarType(impl.dtype())) ||
          at::isComplexType(c10::typeMetaToScalarType(impl.dtype())));
}

// What a kernel lays down before it computes, as addmm does the bias: what it makes of that is its own work.
bool lays_down(std::string_view name) {
  return name == "aten::fill_" || name == "aten::zero_" || name == "aten::copy_";
}

std::uint64_t furthest_step() {
  std::uint64_t most = 0;
  for (const auto& entry : live().optimizers) {
    if (is_alive(*entry)) most = std::max(most, entry->step);
  }
  return most;
}

std::int64_t place_of(const c10::TensorImpl& impl, std::int64_t element) {
  const auto sizes = impl.sizes();
  const auto strides = impl.strides();
  std::int64_t offset = 0, rest = element;
  for (std::size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) offset += rest % sizes[d] * strides[d];
  return offset;
}

// One bit of an element changes, as in a fault of a memory cell or of a unit of the processor. CPU only.
bool flip(const c10::TensorImpl& impl, std::int64_t element, std::int64_t bit) {
  if (!can_hold(impl) || !impl.is_cpu() || element < 0 || element >= impl.numel() || bit < 0) return false;
  char* data = static_cast<char*>(impl.storage().mutable_data());
  const auto item = static_cast<std::int64_t>(impl.itemsize());
  if (data == nullptr || bit >= item * 8) return false;
  data[(impl.storage_offset() + place_of(impl, element)) * item + bit / 8] ^= static_cast<char>(1 << (bit % 8));
  return true;
}

// Raw memory, or an op that nobody observes and that changes no version counter.
bool overwrite(const c10::TensorImpl& impl, std::int64_t element, double value) {
  if (!can_hold(impl) || element < 0 || element >= impl.numel()) return false;
  const std::int64_t offset = place_of(impl, element);
  if (impl.is_cpu()) {
    const at::ScalarType type = c10::typeMetaToScalarType(impl.dtype());
    char* data = static_cast<char*>(impl.storage().mutable_data());
    if (data == nullptr) return false;
    data += (impl.storage_offset() + offset) * static_cast<std::int64_t>(impl.itemsize());
    switch (type) {
      case at::kDouble:
        *reinterpret_cast<double*>(data) = value;
        return true;
      case at::kFloat:
        *reinterpret_cast<float*>(data) = static_cast<float>(value);
        return true;
      case at::kHalf:
        *reinterpret_cast<at::Half*>(data) = at::Half(static_cast<float>(value));
        return true;
      case at::kBFloat16:
        *reinterpret_cast<at::BFloat16*>(data) = at::BFloat16(static_cast<float>(value));
        return true;
      case at::kComplexFloat:
        *reinterpret_cast<float*>(data) = static_cast<float>(value);
        return true;
      case at::kComplexDouble:
        *reinterpret_cast<double*>(data) = value;
        return true;
      default:
        return false;
    }
  }
  at::DisableRecordFunctionGuard unobserved;
  at::AutoDispatchBelowADInplaceOrView below;
  c10::TensorImpl* writable = const_cast<c10::TensorImpl*>(&impl);
  at::Tensor whole(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(writable));
  whole.as_strided({}, {}, impl.storage_offset() + offset).fill_(value);
  return true;
}

const char* phase_word(bool in_node) {
  if (in_node) return "backward";
  switch (observe::Tracer::thread_phase()) {
    case record::Phase::kBackward:
      return "backward";
    case record::Phase::kOptimizer:
      return "optimizer";
    case record::Phase::kData:
      return "data";
    default:
      return "forward";
  }
}

void stop() {
  if (!on.exchange(false)) return;
  at::removeCallback(handle);
  *the_decide = py::object();
}

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction& fn) {
  const observe::OpInfo& info = observe::op_info(fn);
  const bool is_node = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if (info.transparent) return nullptr;
  auto context = std::make_unique<Context>();
  auto open = std::make_unique<Open>();
  open->info = &info;
  open->is_node = is_node;
  if (is_node) {
    open->node = info.name;
    open->node_key = observe::node_key(fn.forwardThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  }
  auto inputs = fn.inputs();
  if (info.is_op && inputs.size() > info.args.size()) inputs = inputs.slice(inputs.size() - info.args.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for_each_tensor(inputs[i], [&](const at::Tensor& t) {
      if (!t.defined()) return;
      context->read.push_back(memory_of(*t.unsafeGetTensorImpl()));
      if (info.is_op && i < 64 && ((info.writes >> i) & 1) != 0) context->written.push_back(t.unsafeGetTensorImpl());
    });
  }
  context->open = open.get();
  open_ops.push_back(std::move(open));
  return context;
}

// The node that the innermost op runs in, if any.
const Open* innermost_node() {
  for (std::size_t i = open_ops.size(); i-- > 0;) {
    if (open_ops[i]->is_node) return open_ops[i].get();
  }
  return nullptr;
}

void ask(const observe::OpInfo& info, const std::vector<std::uint64_t>& makes,
         const std::vector<const c10::TensorImpl*>& results, const std::vector<std::int64_t>& numels) {
  const Open* node = innermost_node();
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  const std::uint64_t step = furthest_step();
  if (!on || step < first_step || step > last_step) return;
  try {
    const py::object decide = *the_decide;
    const py::object answer = decide(info.name, phase_word(node != nullptr),
                                     node != nullptr ? py::object(py::str(node->node)) : py::object(py::none()),
                                     node != nullptr ? node->node_key : 0, makes, numels, runs.load());
    if (answer.is_none()) return;
    if (py::isinstance<py::tuple>(answer) && py::len(answer) == 4) {
      const auto [which, at, unused, bit] =
          answer.cast<std::tuple<std::size_t, std::int64_t, py::object, std::int64_t>>();
      if (which < results.size()) flip(*results[which], at, bit);
      return;
    }
    const auto [result, element, value] = answer.cast<std::tuple<std::size_t, std::int64_t, double>>();
    if (result < results.size()) overwrite(*results[result], element, value);
  } catch (std::exception& e) {
    PySys_WriteStderr("finitude: the self-test's injection failed and is off (%.400s)\n", e.what());
    stop();
  }
}

void end_op(const at::RecordFunction& fn, Context* context) {
  // Ops that an exception ended have been left behind; their contexts are gone.
  while (!open_ops.empty() && open_ops.back().get() != context->open) open_ops.pop_back();
  if (open_ops.empty()) return;
  const std::unique_ptr<Open> self = std::move(open_ops.back());
  open_ops.pop_back();
  const observe::OpInfo& info = *self->info;
  if (self->is_node || info.allocates || info.from_host) return;
  std::vector<std::uint64_t> makes;
  std::vector<const c10::TensorImpl*> results;
  const auto add = [&](const c10::TensorImpl& impl) {
    if (std::find(results.begin(), results.end(), &impl) == results.end()) results.push_back(&impl);
  };
  if (info.is_op) {
    const auto& outputs = fn.outputs();
    const std::size_t count = std::min(outputs.size(), info.returns.size());
    for (std::size_t i = outputs.size() - count; i < outputs.size(); ++i) {
      for_each_tensor(outputs[i], [&](const at::Tensor& t) {
        if (!t.defined()) return;
        observe::add_made_nodes(t, !context->written.empty(), &makes);
        add(*t.unsafeGetTensorImpl());
      });
    }
    for (const c10::TensorImpl* impl : context->written) add(*impl);
  } else if (fn.seqNr() >= 0) {  // a custom Function; its node got the number that was next when it began
    makes.push_back(observe::node_key(at::RecordFunction::currentThreadId(), static_cast<std::uint64_t>(fn.seqNr())));
  }
  std::vector<std::int64_t> numels;
  bool any = false;
  Open* outer = open_ops.empty() ? nullptr : open_ops.back().get();
  for (const c10::TensorImpl* impl : results) {
    const void* memory = memory_of(*impl);
    const auto is_in = [&](const std::vector<const void*>& list) {
      return std::find(list.begin(), list.end(), memory) != list.end();
    };
    const bool was_written =
        std::find(context->written.begin(), context->written.end(), impl) != context->written.end();
    const bool is_view = !was_written && is_in(context->read);
    const bool own = info.is_op && !is_view && !is_in(self->computed_inside) && can_hold(*impl);
    numels.push_back(own ? impl->numel() : 0);
    any |= own;
    // A composite operator has no kernel of its own: what its parts lay down is all that there is.
    const bool counts = outer != nullptr && (outer->info->composite || !lays_down(info.name));
    if (counts && !is_view) outer->computed_inside.push_back(memory);
  }
  if (any || !makes.empty()) ask(info, makes, results, numels);
}

struct InsideGuard {
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = false; }
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (inside || fn.isAsync() || !on) return nullptr;
  InsideGuard guard;
  try {
    if (observe::is_traced()) return nullptr;
    return begin_op(fn);
  } catch (...) {
    return nullptr;
  }
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr || inside) return;
  InsideGuard guard;
  try {
    end_op(fn, static_cast<Context*>(context));
  } catch (...) {
  }
}

void start(const py::object& function, std::uint64_t first, std::uint64_t last) {
  stop();
  *the_decide = function;
  first_step = first;
  last_step = last;
  on = true;
  handle = at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

py::list steps() {
  py::list out;
  for (const auto& entry : live().optimizers) {
    if (is_alive(*entry)) out.append(py::make_tuple(entry->ordinal, entry->class_name, entry->step));
  }
  return out;
}

// While the decision is made: the operators whose kernels called this one, the innermost last.
py::list inside_of() {
  py::list out;
  for (const auto& open : open_ops) {
    if (!open->is_node) out.append(open->info->name);
  }
  return out;
}

}  // namespace

void note_trace_begun() noexcept { ++runs; }

void define_inject(py::module_& m) {
  m.def("inject_start", &start);
  m.def("inject_stop", &stop);
  m.def("inject_steps", &steps);
  m.def("inject_inside", &inside_of);
  m.def("inject_flip", [](py::handle t, std::int64_t element, std::int64_t bit) {
    return is_tensor_object(t.ptr()) && flip(*THPVariable_Unpack(t.ptr()).unsafeGetTensorImpl(), element, bit);
  });
  m.def("inject_write", [](py::handle t, std::int64_t element, double value) {
    return is_tensor_object(t.ptr()) && overwrite(*THPVariable_Unpack(t.ptr()).unsafeGetTensorImpl(), element, value);
  });
}

}  // namespace finitude::bindings
