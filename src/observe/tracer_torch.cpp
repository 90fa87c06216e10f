#include "observe/tracer_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstring>

#include "observe/call_copy_torch.h"
#include "observe/op_info_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMaxOps = 2'000'000;
constexpr std::size_t kMaxListed = 4096;                 // tensors of one list argument
constexpr std::size_t kMaxCapture = 256u << 20;
constexpr std::size_t kMaxCaptures = 512;

thread_local std::vector<record::OpId> open_ops;
thread_local std::vector<record::OpId> open_nodes;
thread_local bool inside = false;                        // our own work must not be observed

struct InsideGuard {
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = false; }
};

std::uint64_t node_key(std::uint64_t thread, std::uint64_t sequence) { return (thread << 48) ^ sequence; }

// Memory that an op wrote without giving it back as an output; read again when the op ends. The caller of the op owns
// the tensor for that long.
struct Written {
  std::size_t input;
  const char* data;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t numel;
  sense::DType dtype;
};

bool mask_like(const sense::Health& h) {
  return h.nan == 0 && (h.finite() == 0 || h.min == h.max || h.finite() == h.zero);
}

}  // namespace

struct Tracer::Context : at::ObserverContext {
  record::OpId op = record::kNone;
  std::uint64_t generation = 0;
  const OpInfo* info = nullptr;
  std::vector<Written> written;
  std::shared_ptr<CapturedCall> call;
  std::size_t call_bytes = 0;
  std::vector<record::StorageId> input_storages;
  bool is_node = false;
};

Tracer& Tracer::get() {
  static Tracer* tracer = new Tracer();
  return *tracer;
}

record::Phase& Tracer::thread_phase() {
  thread_local record::Phase phase = record::Phase::kForward;
  return phase;
}

Tracer::PhaseGuard::PhaseGuard(record::Phase phase) : before(thread_phase()) { thread_phase() = phase; }
Tracer::PhaseGuard::~PhaseGuard() { thread_phase() = before; }

void Tracer::start(StackFn stack) {
  if (on_) return;
  stack_fn_ = stack;
  ++generation_;
  on_ = true;
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&Tracer::on_start, &Tracer::on_end)
                                      .needsInputs(true)
                                      .needsOutputs(true)
                                      .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void Tracer::stop() {
  if (!on_) return;
  at::removeCallback(handle_);
  on_ = false;
}

void Tracer::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++generation_;
  for (auto& [storage, id] : storages_) c10::raw::weak_intrusive_ptr::decref(storage);
  storages_.clear();
  stacks_.clear();
  forward_of_.clear();
  captured_.clear();
  captured_bytes_ = 0;
  backward_stack_ = record::kNone;
  micro_batch_ = ends_ = 0;
  trace_ = record::Trace();
}

record::StorageId Tracer::storage_id(c10::StorageImpl* storage) {
  const auto [it, fresh] = storages_.try_emplace(storage, static_cast<record::StorageId>(trace_.storages.size()));
  if (fresh) {
    // A weak reference keeps the address from being used again; the memory itself is freed as always.
    c10::raw::weak_intrusive_ptr::incref(storage);
    trace_.storages.emplace_back();
  }
  return it->second;
}

record::TensorUse Tracer::use_of(const c10::TensorImpl& impl, bool scan) {
  record::TensorUse use;
  TensorView v;
  if (!view_of(impl, &v)) return use;
  use.storage = storage_id(v.storage);
  use.begin = v.begin;
  use.end = v.end;
  use.dtype = v.dtype;
  use.shape.assign(v.sizes.begin(), v.sizes.end());
  use.dense = v.numel * static_cast<std::int64_t>(impl.itemsize()) == v.end - v.begin;
  use.requires_grad = impl.requires_grad();
  if (scan && v.dtype != sense::DType::kOther) {
    use.health = full(v);
    if (!use.health.ok() && v.contiguous) {
      use.first_bad = static_cast<std::int64_t>(sense::first_non_finite(v.data, static_cast<std::size_t>(v.numel), v.dtype));
      const std::int64_t rows = v.sizes.empty() ? 0 : v.sizes[0];
      const std::int64_t row = rows > 0 ? v.numel / rows : 0;
      for (std::int64_t i = 0; i < rows && rows > 1 && use.bad_rows.size() < record::kMaxBadRows; ++i) {
        const char* data = v.data + i * row * static_cast<std::int64_t>(impl.itemsize());
        if (sense::quick_scan(data, static_cast<std::size_t>(row), v.dtype).bad) use.bad_rows.push_back(i);
      }
    }
  }
  if (impl.is_wrapped_number()) {
    trace_.storages[use.storage].origin = record::Origin::kConstant;
    if (impl.dtype() == caffe2::TypeMeta::Make<std::int64_t>()) {  // a Python int: its value is evidence
      std::int64_t value;
      std::memcpy(&value, v.data, sizeof value);
      use.health.numel = 1;
      use.health.zero = value == 0;
      use.health.min = use.health.max = static_cast<double>(value);
      use.health.absmax = std::fabs(use.health.min);
    }
  }
  return use;
}

std::uint32_t Tracer::intern_stack() {
  std::vector<record::Frame> frames;
  std::string module;
  if (stack_fn_ == nullptr || !stack_fn_(&frames, &module) || frames.empty()) return record::kNone;
  std::string key = module;
  for (const auto& f : frames) key += '\n' + f.file + ':' + std::to_string(f.line);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, fresh] = stacks_.try_emplace(std::move(key), static_cast<std::uint32_t>(trace_.stacks.size()));
  if (fresh) trace_.stacks.push_back({std::move(frames), std::move(module), {}});
  return it->second;
}

void Tracer::name_storage(const c10::TensorImpl& tensor, record::Origin origin, const std::string& name) {
  TensorView v;
  if (!view_of(tensor, &v)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  auto& storage = trace_.storages[storage_id(v.storage)];
  storage.origin = origin;
  storage.name = name;
}

void Tracer::name_batch(const c10::TensorImpl& tensor, const std::string& name) {
  const std::uint32_t stack = intern_stack();
  TensorView v;
  if (!view_of(tensor, &v)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  auto& storage = trace_.storages[storage_id(v.storage)];
  storage.origin = record::Origin::kBatch;
  storage.name = name;
  storage.stack = stack;
}

void Tracer::add_sink(const std::string& kind, const std::string& name, const c10::TensorImpl& tensor,
                      std::uint32_t micro_batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  trace_.sinks.push_back({kind, name, use_of(tensor, true), ends_ + 1, micro_batch});
}

void Tracer::set_backward_stack() { backward_stack_ = intern_stack(); }

record::Trace Tracer::take_trace() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(trace_);
}

const CapturedCall* Tracer::captured(record::OpId op) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = captured_.find(op);
  return it == captured_.end() ? nullptr : it->second.get();
}

std::size_t Tracer::num_ops() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return trace_.ops.size();
}

std::unique_ptr<at::ObserverContext> Tracer::on_start(const at::RecordFunction& fn) {
  if (inside || fn.isAsync()) return nullptr;
  InsideGuard guard;
  try {
    return get().start_op(fn);
  } catch (...) {
    return nullptr;  // a guest never throws into its host; the op is missing from the trace
  }
}

void Tracer::on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr || inside) return;
  InsideGuard guard;
  try {
    get().end_op(fn, static_cast<Context*>(context));
  } catch (...) {
  }
}

std::unique_ptr<at::ObserverContext> Tracer::start_op(const at::RecordFunction& fn) {
  const OpInfo& info = op_info(fn);
  const bool is_node = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if (info.transparent) return nullptr;
  auto inputs = fn.inputs();
  // A boxed call shows its whole stack (Dispatcher::callBoxed), with what its callers left below the arguments.
  if (info.is_op && inputs.size() > info.args.size()) inputs = inputs.slice(inputs.size() - info.args.size());
  if (!info.is_op && !is_node) {
    bool tensors = false;
    for (const auto& v : inputs) tensors |= v.isTensor();
    if (!tensors) return nullptr;
  }
  const bool top = open_ops.empty() || (!open_nodes.empty() && open_ops.back() == open_nodes.back());
  std::uint32_t stack = record::kNone;
  if (top && !is_node) {
    stack = intern_stack();
    if (!open_nodes.empty() && stack == backward_stack_) stack = record::kNone;
  }

  auto context = std::make_unique<Context>();
  context->info = &info;
  context->is_node = is_node;
  const bool moves = info.may_view && info.writes == 0;  // views compute nothing: their output tells all
  if (info.is_op && !info.allocates && !info.from_host && !is_node && !moves) {
    // Copied before the kernel can overwrite them; dropped at once where the outputs are finite.
    context->call = copy_call(info.name, fn.overload_name(), inputs, &context->call_bytes);
  }

  std::lock_guard<std::mutex> lock(mutex_);
  if (trace_.ops.size() >= kMaxOps) {
    trace_.truncated = true;
    return nullptr;
  }
  const auto id = static_cast<record::OpId>(trace_.ops.size());
  record::Op op;
  op.name = info.name;
  op.is_node = is_node;
  op.allocates = info.allocates;
  op.random = info.random;
  op.parent = open_ops.empty() ? record::kNone : open_ops.back();
  op.node = open_nodes.empty() ? record::kNone : open_nodes.back();
  op.phase = is_node || !open_nodes.empty() ? record::Phase::kBackward : thread_phase();
  op.micro_batch = micro_batch_;
  op.stack = stack;
  if (stack == record::kNone && op.parent != record::kNone && !trace_.ops[op.parent].is_node) {
    op.stack = trace_.ops[op.parent].stack;
  }
  const auto add = [&](const at::Tensor& t, std::size_t arg) {
    if (!t.defined() || info.from_host) return;
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    // What is only overwritten was not read: its old content explains nothing.
    record::TensorUse use = use_of(impl, !moves && (arg >= 64 || ((info.overwrites >> arg) & 1) == 0));
    if (arg < info.args.size()) use.arg = info.args[arg];
    use.written = arg < 64 && ((info.writes >> arg) & 1) != 0;
    if (use.written && use.storage != record::kNone) {
      TensorView v;
      view_of(impl, &v);
      context->written.push_back({op.inputs.size(), v.data, {v.sizes.begin(), v.sizes.end()},
                                  {v.strides.begin(), v.strides.end()}, v.numel, v.dtype});
    }
    context->input_storages.push_back(use.storage);
    op.inputs.push_back(std::move(use));
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const c10::IValue& v = inputs[i];
    if (v.isTensor()) {
      add(v.toTensor(), i);
    } else if (v.isTensorList()) {
      const auto list = v.toTensorVector();
      for (std::size_t k = 0; k < list.size() && k < kMaxListed; ++k) add(list[k], i);
    } else if (v.isOptionalTensorList()) {
      for (const auto& t : v.toOptionalTensorVector()) {
        if (t) add(*t, i);
      }
    } else if (info.is_op) {
      record::ScalarUse scalar;
      if (i < info.args.size()) scalar.arg = info.args[i];
      scalar.text = text_of(v, &scalar.number);
      scalar.tensor_like = v.isScalar() && (scalar.arg == "other" || scalar.arg == "self" || scalar.arg == "value" ||
                                            scalar.arg == "fill_value" || scalar.arg == "exponent");
      op.scalars.push_back(std::move(scalar));
    }
  }
  if (is_node) {
    const auto it = forward_of_.find(node_key(fn.forwardThreadId(), static_cast<std::uint64_t>(fn.seqNr())));
    if (it != forward_of_.end()) op.forward = it->second;
  } else if (!info.is_op && fn.seqNr() >= 0) {
    // A custom Function: its node gets the sequence number that is next now; no op output shows it.
    forward_of_.try_emplace(node_key(at::RecordFunction::currentThreadId(), static_cast<std::uint64_t>(fn.seqNr())), id);
  }
  trace_.ops.push_back(std::move(op));
  open_ops.push_back(id);
  if (is_node) open_nodes.push_back(id);
  context->op = id;
  context->generation = generation_;
  return context;
}

void Tracer::end_op(const at::RecordFunction& fn, Context* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!open_ops.empty() && open_ops.back() >= context->op) open_ops.pop_back();
  while (!open_nodes.empty() && open_nodes.back() >= context->op) open_nodes.pop_back();
  if (context->generation != generation_ || context->op >= trace_.ops.size()) return;
  const OpInfo& info = *context->info;
  bool all_views = info.may_view, any = false, bad = false, inputs_nan = false;
  std::vector<record::TensorUse> outputs;
  std::size_t index = 0;
  const auto add = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    record::TensorUse use = use_of(impl, true);
    if (index < info.returns.size()) use.arg = info.returns[index];
    if (use.storage != record::kNone) {
      any = true;
      bad |= !use.health.ok();
      bool known = false;
      for (record::StorageId s : context->input_storages) known |= s == use.storage;
      all_views &= known;
    }
    if (const auto* meta = torch::autograd::impl::get_autograd_meta(t); meta != nullptr && meta->grad_fn_) {
      const auto* node = meta->grad_fn_.get();
      forward_of_.try_emplace(node_key(node->thread_id(), node->sequence_nr()), context->op);
    }
    outputs.push_back(std::move(use));
  };
  if (!context->is_node) {
    const auto& results = fn.outputs();
    const std::size_t count = std::min(results.size(), std::max<std::size_t>(info.returns.size(), info.is_op ? 0 : 64));
    for (std::size_t i = results.size() - count; i < results.size(); ++i, ++index) {
      const c10::IValue& v = results[i];
      if (v.isTensor()) {
        add(v.toTensor());
      } else if (v.isTensorList()) {
        for (const at::Tensor& t : v.toTensorVector()) add(t);
      }
    }
  }
  record::Op& op = trace_.ops[context->op];
  op.failed = info.is_op && !info.returns.empty() && fn.outputs().empty();
  for (const Written& w : context->written) {
    record::TensorUse use = op.inputs[w.input];
    bool listed = false;
    for (const auto& out : outputs) listed |= out.storage == use.storage && out.begin == use.begin && out.end == use.end;
    if (listed || w.dtype == sense::DType::kOther) continue;
    use.health = sense::full_scan_strided(w.data, w.sizes.data(), w.strides.data(), static_cast<int>(w.sizes.size()), w.dtype);
    use.first_bad = -1;
    bad |= !use.health.ok();
    outputs.push_back(std::move(use));
  }
  // set_ hands over memory that was filled elsewhere (torch.load): nothing is computed.
  op.is_view = (any && all_views && context->written.empty()) || info.name == "aten::set_";
  for (const auto& in : op.inputs) inputs_nan |= in.health.nan != 0;
  if (info.from_host && bad) {
    // torch.tensor(...): a mask is an intended constant; anything else is data that came in bad.
    for (const auto& out : outputs) {
      if (mask_like(out.health)) {
        op.scalars.push_back({"data", "inf", out.health.neg_inf ? -HUGE_VAL : HUGE_VAL, true});
      } else {
        op.phase = record::Phase::kData;
      }
    }
  }
  op.outputs = std::move(outputs);
  op.end_order = ++ends_;
  if (bad && !op.is_view && context->call && !inputs_nan && captured_.size() < kMaxCaptures &&
      captured_bytes_ + context->call_bytes < kMaxCapture) {
    captured_bytes_ += context->call_bytes;
    captured_[context->op] = std::move(context->call);
    op.captured = true;
  }
}

}  // namespace finitude::observe
