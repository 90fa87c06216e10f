#include "observe/tracer_torch.h"

#include <utility>

#include "observe/effort.h"
#include "observe/own_training.h"
#include "observe/traced_torch.h"
#include "observe/tracer_context_torch.h"
#include "observe/unseen_write_torch.h"

namespace finitude::observe {
namespace {

thread_local bool inside = false;  // our own work must not be observed

struct InsideGuard {
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = false; }
};

// A weak reference keeps the address from being used again; the memory itself is freed as always.
void hold_storage(void* storage) { c10::raw::weak_intrusive_ptr::incref(static_cast<c10::StorageImpl*>(storage)); }
void release_storage(void* storage) { c10::raw::weak_intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

// A storage whose last tensor is gone is held by our weak reference, without its memory.
bool place_of_storage(void* memory, std::uint64_t* address, std::int64_t* size_bytes) {
  try {
    auto* const storage = static_cast<c10::StorageImpl*>(memory);
    if (c10::raw::weak_intrusive_ptr::use_count(storage) == 0) return false;
    *address = reinterpret_cast<std::uint64_t>(storage->data_ptr().get());
    *size_bytes = storage->sym_nbytes().maybe_as_int().value_or(0);
    return *address != 0;
  } catch (...) {  // what has no memory of its own throws
    return false;
  }
}

}  // namespace

OpenCalls& open_calls() noexcept {
  thread_local OpenCalls open;
  return open;
}

Tracer::Tracer() : sink_(record::EventSink::Limits{}, {&hold_storage, &release_storage, &place_of_storage}) {}

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
  const OpenCalls& open = open_calls();
  return tracer.on() && open.generation == tracer.sink_.generation() ? open.op() : record::kNone;
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
  traced_training = 0;
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
  const OpenCalls& open = open_calls();
  if (open.generation == sink_.generation() && !open.nodes.empty()) return;
  backward_stack_ = intern_stack();
}

std::unique_ptr<at::ObserverContext> Tracer::on_start(const at::RecordFunction& fn) {
  if (inside || fn.isAsync() || get().paused_ || is_of_other_training()) return nullptr;
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

}  // namespace finitude::observe
