#include "observe/tracer_torch.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "observe/call_copy_torch.h"
#include "observe/concrete_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/effort.h"
#include "observe/made_nodes_torch.h"
#include "observe/nested_writes.h"
#include "observe/op_info_torch.h"
#include "observe/op_tensors_torch.h"
#include "observe/surely_finite.h"
#include "observe/traced_torch.h"
#include "observe/unseen_write_torch.h"
#include "record/argument_words.h"
#include "record/exchange.h"

namespace finitude::observe {
namespace {

// set_ hands over memory that was filled elsewhere (torch.load), _unpack_dual a tangent that other operators computed,
// the others the parts of a sparse tensor: nothing is computed.
bool hands_over(const std::string& op) {
  return op == "aten::set_" || op == "aten::_unpack_dual" || op == "aten::_values" || op == "aten::_indices" ||
         op == "aten::values" || op == "aten::indices";
}

// What this thread is inside of, as ids of the trace of `open_generation`.
thread_local std::vector<record::OpId> open_ops;
thread_local NestedWrites nested_writes;  // of open_ops
thread_local std::vector<record::OpId> open_nodes;
thread_local std::vector<std::uint32_t> called_from;  // of open_nodes: the line whose backward it is
thread_local std::vector<record::OpId>
    open_functions;  // that may run code of others: custom Functions and their nodes, operators of libraries
thread_local std::vector<record::OpId> open_kernels;  // that may write memory between the operators that they call
thread_local std::uint64_t open_generation = 0;
thread_local bool inside = false;  // our own work must not be observed

struct InsideGuard {
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = false; }
};

bool mask_like(const sense::Health& h) {
  return h.nan == 0 && (h.finite() == 0 || h.min == h.max || h.finite() == h.zero);
}

// A weak reference keeps the address from being used again; the memory itself is freed as always.
void hold_storage(void* storage) { c10::raw::weak_intrusive_ptr::incref(static_cast<c10::StorageImpl*>(storage)); }
void release_storage(void* storage) { c10::raw::weak_intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

}  // namespace

// An input whose health was known without a look at it.
struct Recalled {
  std::size_t index = 0;  // of the op's inputs
  const void* memory = nullptr;
  const c10::TensorImpl* tensor = nullptr;
  std::optional<WeakTensor> weakly;  // nothing: the op may change it, and has left a copy
};

struct Tracer::Context : at::ObserverContext {
  record::EventSink::Token token;
  const OpInfo* info = nullptr;
  std::vector<Written> written;
  std::optional<HeldCall> call;
  std::vector<Recalled> recalled;
  std::vector<Span> in_doubt;  // that the op may have written
  std::vector<void*> input_memory;
  std::optional<c10::Device> device;  // that it reads from
  bool is_node = false, inputs_nan = false, inputs_inf = false,
       nested = false;     // nested: in another operator, node or custom Function
  bool in_kernel = false;  // in an operator that is no composition of others
  void saw(const sense::Health& health) { inputs_nan |= health.nan != 0, inputs_inf |= health.inf() != 0; }
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

record::OpId Tracer::open_op() {
  Tracer& tracer = get();
  if (!tracer.on() || open_generation != tracer.sink_.generation() || open_ops.empty()) return record::kNone;
  return open_ops.back();
}

Tracer::PhaseGuard::PhaseGuard(record::Phase phase) : before(thread_phase()) { thread_phase() = phase; }
Tracer::PhaseGuard::~PhaseGuard() { thread_phase() = before; }

void Tracer::start(const Places* places, bool sketch, const Bound& bound) {
  if (on()) return;
  until_ops_ = effort().ops.load() + bound.ops;
  until_read_bytes_ = effort().read_bytes.load() + bound.read_bytes;
  sketch_ = sketch;
  paused_ = false;
  places_ = places;
  nodes_report_backward_ = places != nullptr && places->nodes_report_backward;
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
  unseen_writes().on = false;
  free_spare_copies();
}

void Tracer::clear() {
  others_write_ = false;
  sink_.clear();
  backward_stack_ = record::kNone;
  micro_batch_ = 0;
  std::unordered_map<record::OpId, std::shared_ptr<CapturedCall>> captured;
  std::lock_guard<std::mutex> lock(captured_mutex_);
  captured_.swap(captured);
  captured_bytes_ = 0;
}

void Tracer::set_backward_stack() {
  // One that a node calls (a checkpoint's) is no new beginning for the nodes that come after it.
  if (open_generation == sink_.generation() && !open_nodes.empty()) return;
  backward_stack_ = intern_stack();
}

std::unique_ptr<at::ObserverContext> Tracer::on_start(const at::RecordFunction& fn) {
  if (inside || fn.isAsync() || get().paused_) return nullptr;
  InsideGuard guard;
  try {
    if (is_traced()) return nullptr;
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
  if (sink_.full() || effort().ops.load(std::memory_order_relaxed) >= until_ops_ ||
      effort().read_bytes.load(std::memory_order_relaxed) >= until_read_bytes_) {
    sink_.drop();
    return nullptr;
  }
  if (const std::uint64_t generation = sink_.generation(); open_generation != generation) {
    open_ops.clear();
    nested_writes.clear();
    open_nodes.clear();
    called_from.clear();
    open_functions.clear();
    open_kernels.clear();
    open_generation = generation;
  }
  const auto innermost = [](const std::vector<record::OpId>& some) {
    return !some.empty() && open_ops.back() == some.back();
  };
  const bool top = open_ops.empty() || innermost(open_nodes) || innermost(open_functions);
  std::uint32_t stack = record::kNone;
  const std::uint32_t runs_from = is_node ? intern_stack() : record::kNone;
  if (top && !is_node) {
    stack = intern_stack();
    if (!open_nodes.empty()) stack = sink_.stack_in_node(stack, called_from.back(), open_nodes.back());
  }

  auto context = std::make_unique<Context>();
  context->info = &info;
  context->is_node = is_node;
  context->nested = !open_ops.empty();
  const bool moves = info.may_view && info.writes == 0;  // views compute nothing: their output says all
  // The memory that the op is going to write, and so all that lies in it. Only schemas of aten can be taken at their
  // word.
  std::vector<const void*> changing;
  if (info.writes != 0) {
    for (std::size_t i = 0; i < inputs.size() && i < 64; ++i) {
      if (((info.writes >> i) & 1) != 0)
        for_each_tensor(inputs[i], [&](const at::Tensor& t) { changing.push_back(memory_of(t)); });
    }
  }
  const bool says_what_it_writes = info.name.starts_with("aten::");
  if (!says_what_it_writes && record::exchanges_values(info.name)) others_write_ = true;
  const auto changes = [&](const at::Tensor& t) {
    if (!says_what_it_writes) return true;
    return !changing.empty() && std::find(changing.begin(), changing.end(), memory_of(t)) != changing.end();
  };
  const bool by_parts = info.by_parts.load(std::memory_order_relaxed);
  const bool sketch = sketch_.load(std::memory_order_relaxed);

  // A kernel (gather, index_add) writes memory of its own between the operators that it calls: what those saw is not
  // what is there.
  context->in_kernel = !open_kernels.empty();
  // What a part of an operator reads was looked at when that began, or written inside of it.
  const bool afresh = top && info.is_op && !sketch && unseen_writes().on;
  const bool forgotten = context->in_kernel || others_write_.load(std::memory_order_relaxed);
  const std::uint64_t known_since = forgotten ? 0 : unseen_writes().since(open_generation);
  std::vector<UnseenWrite> unseen;

  Eye eye(known_, known_since);
  record::BeginOp begun;
  begun.inputs.reserve(4);
  context->input_memory.reserve(4);
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
  const auto add = [&](const at::Tensor& given, std::size_t arg) {
    if (!given.defined() || info.from_host) return;
    const at::Tensor t = with_memory(given);
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    if (is_concrete(impl) && !impl.is_cpu() && is_recorded_device(impl.device())) context->device = impl.device();
    // What is only overwritten was not read: its old content explains nothing.
    const bool read = !sketch && !moves && (arg >= 64 || ((info.overwrites >> arg) & 1) == 0);
    bool recalled = false;
    sense::Health before;
    const bool was_known = afresh && read && open_functions.empty() && health_known(known_, known_since, impl, &before);
    record::SeenTensor seen = eye.see(impl,
                                      !read                            ? Look::kNo
                                      : says_what_it_writes && !afresh ? Look::kKnown
                                                                       : Look::kFresh,
                                      &recalled);
    if (was_known && is_unseen_write(t, seen, before) && !is_of_compiler(places_))
      unseen.push_back(unseen_write(t, seen, before));
    if (recalled) {
      auto& input = context->recalled.emplace_back();
      input.index = begun.inputs.size();
      input.memory = seen.memory;
      input.tensor = &impl;
      if (!changes(t)) input.weakly.emplace(t.getIntrusivePtr());
    }
    if (arg < info.args.size()) seen.use.arg = info.args[arg];
    // A sparse tensor may get other memory for its values; what it has then is among the outputs.
    seen.use.written = arg < 64 && ((info.writes >> arg) & 1) != 0 && t.is_same(given);
    context->saw(seen.use.health);
    if (seen.use.written && seen.memory != nullptr) {
      if (!by_parts) known_.written(seen.memory, seen.use.begin, seen.use.end);  // else each part does it
      context->written.push_back(written_by(impl, seen));
    } else if (!says_what_it_writes && seen.memory != nullptr) {
      context->in_doubt.push_back({seen.memory, seen.use.begin, seen.use.end});
    }
    context->input_memory.push_back(seen.memory);
    begun.inputs.push_back(std::move(seen));
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const c10::IValue& v = inputs[i];
    if (for_each_tensor(v, [&](const at::Tensor& t) { add(t, i); })) {
    } else if (info.is_op) {
      record::ScalarUse scalar;
      if (i < info.args.size()) scalar.arg = info.args[i];
      scalar.text = record::argument_word(scalar.arg, text_of(v, &scalar.number));
      scalar.tensor_like = v.isScalar() && (scalar.arg == "other" || scalar.arg == "self" || scalar.arg == "value" ||
                                            scalar.arg == "fill_value" || scalar.arg == "exponent");
      op.scalars.push_back(std::move(scalar));
    }
  }
  // What an operator is about to overwrite is copied, unless its parts do that or nothing bad can come of it. The
  // ranges for that are those of an earlier look; nobody writes unseen between the operators of an optimizer.
  if (info.is_op && !sketch && !info.allocates && !info.from_host && !by_parts && !is_node && !moves &&
      (info.writes == 0 || op.phase != record::Phase::kOptimizer ||
       !surely_finite(info.name, begun.inputs, op.scalars))) {
    context->call.emplace(inputs, [&](std::size_t, const at::Tensor& t) { return changes(t); });
  }
  if (is_node) {
    begun.of_node = node_key(fn.forwardThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  } else if (!info.is_op && fn.seqNr() >= 0) {
    // A custom Function: its node gets the sequence number that is next now; no op output shows it.
    begun.makes = node_key(at::RecordFunction::currentThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  }
  count(&effort().ops, 1);
  for (UnseenWrite& write : unseen) {
    record::BeginOp change = begin_of(write, op, open_generation);
    const record::EventSink::Token token = sink_.begin(std::move(change));
    if (!token) break;
    record::EndOp done;
    done.outputs.push_back(std::move(write.after));
    done.captured = keep_call(token.op, std::move(write.copy), write.size_bytes);
    sink_.end(token, std::move(done));
  }
  context->token = sink_.begin(std::move(begun));
  if (!context->token || context->token.generation != open_generation) return nullptr;
  open_ops.push_back(context->token.op);
  nested_writes.begin();
  if (is_node) {
    open_nodes.push_back(context->token.op);
    called_from.push_back(runs_from);
  }
  if (may_run_code_of_others(info.name, is_node))
    open_functions.push_back(context->token.op);
  else if (!is_node && !info.composite)
    open_kernels.push_back(context->token.op);
  return context;
}

// Something may have written an input unseen since it was looked at: where the result is bad, that may be the reason.
void Tracer::look_again(Context* context, record::EndOp* ended) {
  Eye eye(known_, 0);
  for (const Recalled& input : context->recalled) {
    const c10::TensorImpl* tensor = nullptr;
    c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> alive;
    if (input.weakly) {
      alive = input.weakly->lock();
      tensor = alive.defined() ? alive.get() : nullptr;
    } else if (context->call) {
      tensor = context->call->copied(input.tensor);
    }
    if (tensor == nullptr) continue;
    record::SeenTensor seen = eye.see(*tensor, Look::kFresh);
    if (input.weakly && seen.memory != input.memory) continue;
    context->saw(seen.use.health);
    ended->inputs.emplace_back(input.index, std::move(seen.use));
  }
}

void Tracer::end_op(const at::RecordFunction& fn, Context* context) {
  const record::OpId id = context->token.op;
  if (context->token.generation != sink_.generation()) return;  // a new trace began meanwhile
  if (context->token.generation == open_generation) {
    while (!open_ops.empty() && open_ops.back() >= id) open_ops.pop_back();
    while (!open_nodes.empty() && open_nodes.back() >= id) {
      open_nodes.pop_back();
      called_from.pop_back();
    }
    while (!open_functions.empty() && open_functions.back() >= id) open_functions.pop_back();
    while (!open_kernels.empty() && open_kernels.back() >= id) open_kernels.pop_back();
    nested_writes.end(open_ops.size() + 1);  // this one is innermost
  }
  const OpInfo& info = *context->info;
  // What lies in full traces is not held, so that its address may be used again: nothing is known of it. Nor is it of
  // fresh memory, which host code may fill unseen (torch.tensor).
  const bool forgets =
      sink_.full() || info.allocates || context->in_kernel || others_write_.load(std::memory_order_relaxed);
  if (may_run_code_of_others(info.name, context->is_node)) unseen_writes().code_of_others();
  const std::uint64_t remembers = forgets ? 0 : unseen_writes().since(context->token.generation);
  Eye eye(known_, remembers);
  if (context->inputs_inf) eye.reads_infinities();
  if (context->inputs_nan) eye.reads_nan();
  const bool moves = info.is_op && info.may_view && info.writes == 0 && !info.from_host;
  const bool sketch = sketch_.load(std::memory_order_relaxed);
  bool by_parts = info.composite && !context->written.empty();
  for (const Written& w : context->written) {
    const Span span{w.input.memory, w.input.use.begin, w.input.use.end};
    const bool by_part = info.composite && nested_writes.has(span);
    by_parts &= by_part;
    nested_writes.wrote(span);
    // Once more: ops inside of this one may have looked meanwhile. A composite one leaves the last word to them.
    if (!by_part) known_.written(span.memory, span.begin, span.end);
  }
  if (info.composite && !context->written.empty()) info.by_parts.store(by_parts, std::memory_order_relaxed);
  nested_writes.end(open_ops.size());
  for (const Span& span : context->in_doubt) known_.written(span.memory, span.begin, span.end);
  bool all_views = info.may_view, any = false, bad = false;
  record::EndOp ended;
  std::size_t index = 0;
  const auto add = [&](const at::Tensor& given) {
    if (!given.defined()) return;
    const at::Tensor t = with_memory(given);
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    if (context->device && is_concrete(impl) && impl.is_cpu())
      wait_for_device(*std::exchange(context->device, std::nullopt));  // non_blocking
    record::SeenTensor seen = eye.see(impl, sketch                    ? info.from_host ? Look::kFresh : Look::kNo
                                            : moves || info.composite ? Look::kKnown
                                                                      : Look::kFresh);
    if (index < info.returns.size()) seen.use.arg = info.returns[index];
    if (seen.memory != nullptr) {
      any = true;
      bad |= !seen.use.health.ok();
      bool known = false;
      for (const void* memory : context->input_memory) known |= memory == seen.memory;
      all_views &= known;
    }
    add_made_nodes(given, !context->written.empty(), &ended.makes);
    ended.outputs.push_back(std::move(seen));
  };
  if (!context->is_node) {
    const auto& results = fn.outputs();
    const std::size_t count = std::min(results.size(), std::max<std::size_t>(info.returns.size(), info.is_op ? 0 : 64));
    for (std::size_t i = results.size() - count; i < results.size(); ++i, ++index) {
      for_each_tensor(results[i], add);
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
    if (sketch) {
      ended.outputs.push_back(std::move(w.input));
      continue;
    }
    const bool looked =
        info.composite && use.dense && remembers != 0 && known_.find(remembers, w.region(), &use.health);
    if (!looked) use.health = w.health_now();
    use.first_bad = -1;
    use.bad_rows.clear();  // of what was there before
    bad |= !use.health.ok();
    ended.outputs.push_back(std::move(w.input));
  }
  ended.is_view = (any && all_views && context->written.empty()) || hands_over(info.name);
  if (info.from_host && bad) {
    // torch.tensor(...): a mask is an intended constant; anything else is data that came in bad, but within an operator
    // or custom Function, which computed it where nothing is seen.
    for (const auto& out : ended.outputs) {
      const sense::Health& health = out.use.health;
      if (mask_like(health)) {
        ended.scalars.push_back({"data", "inf", health.neg_inf ? -HUGE_VAL : HUGE_VAL, true});
      } else if (!context->nested) {
        ended.phase = record::Phase::kData;
      }
    }
  }
  if (bad && !ended.is_view) {
    look_again(context, &ended);
    std::size_t size_bytes = 0;
    ended.captured = context->call && !context->inputs_nan &&
                     keep_call(id, context->call->finish(info.name, fn.overload_name(), &size_bytes), size_bytes);
  }
  sink_.end(context->token, std::move(ended));
}

}  // namespace finitude::observe
