#include "observe/tracer_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstring>

#include "observe/call_copy_torch.h"
#include "observe/op_info_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMaxListed = 4096;                 // tensors of one list argument
constexpr std::size_t kMaxCapture = 256u << 20;
constexpr std::size_t kMaxCaptures = 512;

// What this thread is inside of, as ids of the trace of `open_generation`.
thread_local std::vector<record::OpId> open_ops;
thread_local std::vector<record::OpId> open_nodes;
thread_local std::uint64_t open_generation = 0;
thread_local bool inside = false;                        // our own work must not be observed

struct InsideGuard {
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = false; }
};

std::uint64_t node_key(std::uint64_t thread, std::uint64_t sequence) { return (thread << 48) ^ sequence; }

// Memory that an op wrote without giving it back as an output; read again when the op ends. The caller of the op owns
// the tensor for that long.
struct Written {
  record::SeenTensor input;
  const char* data;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t numel;
  sense::DType dtype;
};

bool mask_like(const sense::Health& h) {
  return h.nan == 0 && (h.finite() == 0 || h.min == h.max || h.finite() == h.zero);
}

record::SeenTensor see(const c10::TensorImpl& impl, bool scan) {
  record::SeenTensor seen;
  record::TensorUse& use = seen.use;
  TensorView v;
  if (!view_of(impl, &v)) return seen;
  seen.memory = v.storage;
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
    seen.constant = true;
    if (impl.dtype() == caffe2::TypeMeta::Make<std::int64_t>()) {  // a Python int: its value is evidence
      std::int64_t value;
      std::memcpy(&value, v.data, sizeof value);
      use.health.numel = 1;
      use.health.zero = value == 0;
      use.health.min = use.health.max = static_cast<double>(value);
      use.health.absmax = std::fabs(use.health.min);
    }
  }
  return seen;
}

// A weak reference keeps the address from being used again; the memory itself is freed as always.
void hold_storage(void* storage) { c10::raw::weak_intrusive_ptr::incref(static_cast<c10::StorageImpl*>(storage)); }
void release_storage(void* storage) { c10::raw::weak_intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

}  // namespace

struct Tracer::Context : at::ObserverContext {
  record::EventSink::Token token;
  const OpInfo* info = nullptr;
  std::vector<Written> written;
  std::shared_ptr<CapturedCall> call;
  std::size_t call_bytes = 0;
  std::vector<void*> input_memory;
  bool is_node = false, inputs_nan = false;
};

Tracer::Tracer() : sink_(record::EventSink::Limits{}, {&hold_storage, &release_storage}) {}

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
  if (on()) return;
  stack_fn_ = stack;
  sink_.start();
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&Tracer::on_start, &Tracer::on_end)
                                      .needsInputs(true)
                                      .needsOutputs(true)
                                      .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void Tracer::stop() {
  if (!on()) return;
  at::removeCallback(handle_);
  sink_.stop();
}

void Tracer::clear() {
  sink_.clear();
  backward_stack_ = record::kNone;
  micro_batch_ = 0;
  std::unordered_map<record::OpId, std::shared_ptr<CapturedCall>> captured;
  std::lock_guard<std::mutex> lock(captured_mutex_);
  captured_.swap(captured);
  captured_bytes_ = 0;
}

std::uint32_t Tracer::intern_stack() {
  record::Stack stack;
  const StackFn walk = stack_fn_;
  if (walk == nullptr || !walk(&stack.frames, &stack.module)) return record::kNone;
  return sink_.stack(std::move(stack));
}

void Tracer::name_storage(const c10::TensorImpl& tensor, record::Origin origin, const std::string& name) {
  TensorView v;
  if (view_of(tensor, &v)) sink_.name_memory(v.storage, origin, name);
}

void Tracer::name_batch(const c10::TensorImpl& tensor, const std::string& name) {
  const std::uint32_t stack = intern_stack();
  TensorView v;
  if (view_of(tensor, &v)) sink_.name_memory(v.storage, record::Origin::kBatch, name, stack);
}

void Tracer::add_sink(const std::string& kind, const std::string& name, const c10::TensorImpl& tensor,
                      std::uint32_t micro_batch) {
  sink_.add_sink(kind, name, see(tensor, true), micro_batch);
}

void Tracer::set_backward_stack() { backward_stack_ = intern_stack(); }

const CapturedCall* Tracer::captured(record::OpId op) const {
  std::lock_guard<std::mutex> lock(captured_mutex_);
  const auto it = captured_.find(op);
  return it == captured_.end() ? nullptr : it->second.get();
}

bool Tracer::keep_call(record::OpId op, Context* context) {
  std::lock_guard<std::mutex> lock(captured_mutex_);
  if (captured_.size() >= kMaxCaptures || captured_bytes_ + context->call_bytes >= kMaxCapture) return false;
  captured_bytes_ += context->call_bytes;
  captured_[op] = std::move(context->call);
  return true;
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
  if (sink_.full()) {
    sink_.drop();
    return nullptr;
  }
  if (const std::uint64_t generation = sink_.generation(); open_generation != generation) {
    open_ops.clear();
    open_nodes.clear();
    open_generation = generation;
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

  record::BeginOp begun;
  begun.generation = open_generation;
  record::Op& op = begun.op;
  op.name = info.name;
  op.is_node = is_node;
  op.allocates = info.allocates;
  op.random = info.random;
  op.parent = open_ops.empty() ? record::kNone : open_ops.back();
  op.node = open_nodes.empty() ? record::kNone : open_nodes.back();
  op.phase = is_node || !open_nodes.empty() ? record::Phase::kBackward : thread_phase();
  op.micro_batch = micro_batch_.load(std::memory_order_relaxed);
  op.stack = stack;
  const auto add = [&](const at::Tensor& t, std::size_t arg) {
    if (!t.defined() || info.from_host) return;
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    // What is only overwritten was not read: its old content explains nothing.
    record::SeenTensor seen = see(impl, !moves && (arg >= 64 || ((info.overwrites >> arg) & 1) == 0));
    if (arg < info.args.size()) seen.use.arg = info.args[arg];
    seen.use.written = arg < 64 && ((info.writes >> arg) & 1) != 0;
    context->inputs_nan |= seen.use.health.nan != 0;
    if (seen.use.written && seen.memory != nullptr) {
      TensorView v;
      view_of(impl, &v);
      context->written.push_back({seen, v.data, {v.sizes.begin(), v.sizes.end()}, {v.strides.begin(), v.strides.end()},
                                  v.numel, v.dtype});
    }
    context->input_memory.push_back(seen.memory);
    begun.inputs.push_back(std::move(seen));
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
    begun.of_node = node_key(fn.forwardThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  } else if (!info.is_op && fn.seqNr() >= 0) {
    // A custom Function: its node gets the sequence number that is next now; no op output shows it.
    begun.makes = node_key(at::RecordFunction::currentThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  }
  context->token = sink_.begin(std::move(begun));
  if (!context->token || context->token.generation != open_generation) return nullptr;
  open_ops.push_back(context->token.op);
  if (is_node) open_nodes.push_back(context->token.op);
  return context;
}

void Tracer::end_op(const at::RecordFunction& fn, Context* context) {
  const record::OpId id = context->token.op;
  if (context->token.generation != sink_.generation()) return;  // a new trace began meanwhile
  if (context->token.generation == open_generation) {
    while (!open_ops.empty() && open_ops.back() >= id) open_ops.pop_back();
    while (!open_nodes.empty() && open_nodes.back() >= id) open_nodes.pop_back();
  }
  const OpInfo& info = *context->info;
  bool all_views = info.may_view, any = false, bad = false;
  record::EndOp ended;
  std::size_t index = 0;
  const auto add = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    record::SeenTensor seen = see(impl, true);
    if (index < info.returns.size()) seen.use.arg = info.returns[index];
    if (seen.memory != nullptr) {
      any = true;
      bad |= !seen.use.health.ok();
      bool known = false;
      for (const void* memory : context->input_memory) known |= memory == seen.memory;
      all_views &= known;
    }
    if (const auto* meta = torch::autograd::impl::get_autograd_meta(t); meta != nullptr && meta->grad_fn_) {
      const auto* node = meta->grad_fn_.get();
      ended.makes.push_back(node_key(node->thread_id(), node->sequence_nr()));
    }
    ended.outputs.push_back(std::move(seen));
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
  ended.failed = info.is_op && !info.returns.empty() && fn.outputs().empty();
  for (Written& w : context->written) {
    record::TensorUse& use = w.input.use;
    bool listed = false;
    for (const auto& out : ended.outputs) {
      listed |= out.memory == w.input.memory && out.use.begin == use.begin && out.use.end == use.end;
    }
    if (listed || w.dtype == sense::DType::kOther) continue;
    use.health = sense::full_scan_strided(w.data, w.sizes.data(), w.strides.data(), static_cast<int>(w.sizes.size()), w.dtype);
    use.first_bad = -1;
    bad |= !use.health.ok();
    ended.outputs.push_back(std::move(w.input));
  }
  // set_ hands over memory that was filled elsewhere (torch.load): nothing is computed.
  ended.is_view = (any && all_views && context->written.empty()) || info.name == "aten::set_";
  if (info.from_host && bad) {
    // torch.tensor(...): a mask is an intended constant; anything else is data that came in bad.
    for (const auto& out : ended.outputs) {
      const sense::Health& health = out.use.health;
      if (mask_like(health)) {
        ended.scalars.push_back({"data", "inf", health.neg_inf ? -HUGE_VAL : HUGE_VAL, true});
      } else {
        ended.phase = record::Phase::kData;
      }
    }
  }
  ended.captured = bad && !ended.is_view && context->call && !context->inputs_nan && keep_call(id, context);
  sink_.end(context->token, std::move(ended));
}

}  // namespace finitude::observe
