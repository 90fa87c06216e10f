#include "observe/tape_recorder_torch.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "observe/concrete_torch.h"
#include "observe/generator_state_torch.h"
#include "observe/own_training.h"
#include "observe/settings_torch.h"
#include "observe/tape_op_torch.h"
#include "observe/traced_torch.h"

namespace finitude::observe {
namespace {

constexpr std::size_t kMaxEvents = std::size_t{1} << 30;        // bytes of the arena,
constexpr std::size_t kMaxOfEveryStep = std::size_t{64} << 20;  // and where every step is recorded

// What this thread is inside of.
struct OpenOp {
  std::uint64_t number = 0;
  bool autocast = false;  // was yet to be dispatched through autocast
};
thread_local std::vector<OpenOp> open_ops;
thread_local std::uint64_t open_generation = 0;
thread_local std::uint32_t exchanging = 0;  // collective operations, and what is called inside of them
thread_local bool inside = false;

struct InsideGuard {
  InsideGuard() { inside = true; }
  ~InsideGuard() { inside = false; }
};

bool below_autograd() { return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality); }
bool autocast_ahead(c10::DeviceType type) {
  return at::autocast::is_autocast_enabled(type) &&
         !c10::impl::tls_is_dispatch_key_excluded(type == at::kCPU ? c10::DispatchKey::AutocastCPU
                                                                   : c10::DispatchKey::AutocastCUDA);
}
bool has_other_layout(c10::ArrayRef<c10::IValue> values) {
  const auto other = [](const at::Tensor& t) {
    return t.defined() && is_concrete(*t.unsafeGetTensorImpl()) && t.layout() != c10::kStrided &&
           t.layout() != c10::kSparse;
  };
  return std::any_of(values.begin(), values.end(), [&](const c10::IValue& value) {
    if (value.isTensor()) return other(value.toTensor());
    return value.isTensorList() &&
           std::any_of(value.toListRef().begin(), value.toListRef().end(),
                       [&](const c10::IValue& item) { return item.isTensor() && other(item.toTensor()); });
  });
}
bool autocast_ahead() { return autocast_ahead(at::kCPU) || autocast_ahead(at::kCUDA); }

}  // namespace

struct TapeRecorder::Op : TapeOp {
  std::uint32_t number = 0;  // in raw_.operators
};

struct TapeRecorder::Context : at::ObserverContext {
  bool is_node = false, exchanges = false, refused = false;
  std::uint64_t generation = 0, number = 0;
  record::OpId traced = record::kNone;
  const Op* op = nullptr;
  c10::SmallVector<TapeUse, 4> uses;
  c10::SmallVector<std::int64_t, 1> drawn;              // generators that it may draw from
  bool drops = false;                                   // values, with a probability that is not zero
  std::size_t digest = kNoDigest;                       // in digests_
  c10::SmallVector<const c10::TensorImpl*, 2> written;  // borrowed from the caller until the call ends
};

TapeRecorder& TapeRecorder::get() {
  static TapeRecorder* recorder = new TapeRecorder();
  return *recorder;
}

void TapeRecorder::begin_tape() {
  raw_.settings = torch_settings();
  generators_.push_back(at::detail::getDefaultCPUGenerator());
  random_states_.emplace_back();
  random_before(0);
}

void TapeRecorder::start(std::size_t max_bytes, const Places* places, bool every_step) {
  if (on()) return;
  clear();
  max_bytes_ = max_bytes;
  every_step_ = every_step;
  paused_ = false;
  begin_tape();
  places_.start(every_step ? nullptr : places);
  on_ = true;
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&TapeRecorder::on_start, &TapeRecorder::on_end)
                                      .needsInputs(true)
                                      .needsOutputs(true)
                                      .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void TapeRecorder::stop() {
  if (!on()) return;
  at::removeCallback(handle_);
  on_ = false;
}

void TapeRecorder::restart() {
  if (!on()) return;
  std::vector<Known> known;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++generation_;
    known.swap(known_);
    ids_.clear();
    generators_.clear();
    random_states_.clear();
    capture::RawTape fresh;
    fresh.operators.swap(raw_.operators);  // what is known of an operator stays true
    fresh.storages.swap(raw_.storages);    // and memory that every step needs stays where it is
    fresh.events.swap(raw_.events);
    fresh.storages.clear();
    fresh.events.clear();
    raw_ = std::move(fresh);
    events_ = randoms_ = bytes_ = held_bytes_ = 0;
    drawn_bytes_ = draws_left_out_ = 0;
    full_ = too_large_ = lets_go_ = false;
    autocast_.clear();
    exchanges_.clear();
    digests_.clear();
    begin_tape();
  }
  forget(known);
}

// More than may be held, as where a whole data set is gone through between two steps.
void TapeRecorder::let_go_of_inputs() {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lets_go_ = false;
    for (Known& k : known_) {
      if (k.held) held.push_back(std::move(k.held));
    }
  }
}

void TapeRecorder::forget(std::vector<Known>& known) {
  for (Known& k : known) {
    k.held.reset();
    c10::raw::weak_intrusive_ptr::decref(k.impl);
  }
}

void TapeRecorder::clear() {
  std::vector<Known> known;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++generation_;
    known.swap(known_);
    ids_.clear();
    ops_.clear();
    generators_.clear();
    random_states_.clear();
    raw_ = {};
    events_ = randoms_ = bytes_ = held_bytes_ = 0;
    drawn_bytes_ = draws_left_out_ = 0;
    full_ = too_large_ = lets_go_ = false;
    autocast_.clear();
    exchanges_.clear();
    digests_.clear();
  }
  forget(known);  // what memory goes with them may call for the GIL
}

std::unique_ptr<at::ObserverContext> TapeRecorder::on_start(const at::RecordFunction& fn) {
  if (inside || fn.isAsync() || get().paused_ || is_of_other_training()) return nullptr;
  const InsideGuard guard;
  try {
    if (is_traced()) return nullptr;
    TapeRecorder& recorder = get();
    if (recorder.lets_go_) recorder.let_go_of_inputs();
    if (recorder.full_ && recorder.every_step_) {
      Tracer::get().pause(true);  // what it took down is of no use without a tape
      return nullptr;
    }
    if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      if (recorder.every_step_) return nullptr;
      recorder.places_.begin_node(fn);
      auto node = std::make_unique<Context>();
      node->is_node = true;
      return node;
    }
    // Below a recorded call a kernel calls others: they belong to it. Where autocast called them, they are the
    // computation.
    if (open_generation == recorder.generation_ && !open_ops.empty() && below_autograd() &&
        !(open_ops.back().autocast && !autocast_ahead())) {
      return nullptr;
    }
    return recorder.start_op(fn, recorder.every_step_ ? TapePlaces::Where{} : recorder.places_.now(fn));
  } catch (...) {
    get().full_ = true;  // a guest never throws into its host; the tape says that it has a gap
    return nullptr;
  }
}

void TapeRecorder::on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr || inside) return;
  const InsideGuard guard;
  try {
    auto* const begun = static_cast<Context*>(context);
    if (begun->is_node) return get().places_.end_node();
    get().end_op(fn, begun);
  } catch (...) {
    get().full_ = true;
  }
}

const TapeRecorder::Op& TapeRecorder::op_of(const at::RecordFunction& fn) {
  auto& slot = ops_[fn.name()];
  if (!slot || slot->text != fn.name()) {
    auto op = std::make_unique<Op>();
    static_cast<TapeOp&>(*op) = tape_op(fn);
    op->number = static_cast<std::uint32_t>(raw_.operators.size());
    raw_.operators.push_back({{op->name, op->overload}, op->writes});
    if (slot) slot.release();  // of an operator that is gone; one that has not ended may still point at it
    slot = std::move(op);
  }
  return *slot;
}

void TapeRecorder::refuse(const Op& op) {
  constexpr std::size_t kMaxReported = 8;
  auto& refused = raw_.refused;
  if (refused.size() < kMaxReported && std::find(refused.begin(), refused.end(), op.name) == refused.end())
    refused.push_back(op.name);
}

// A call with a value that has no place on a tape. What its kernel itself writes is seen by nobody: memory that it may
// have written is of unknown content, put on the tape when it is read next. What it calls is recorded where it is a
// wrapper of torch.func or a subclass that calls operators on what is inside. A kernel for another layout (a matrix in
// CSR) writes into the memory of the calls that it makes: these belong to it.
std::unique_ptr<at::ObserverContext> TapeRecorder::start_refused(const Op& op, c10::ArrayRef<c10::IValue> inputs) {
  refuse(op);
  if (op.may_view) return nullptr;
  auto context = std::make_unique<Context>();
  context->refused = true;
  context->generation = generation_;
  context->number = events_ + 1;
  if (has_other_layout(inputs)) open_ops.push_back({context->number, autocast_ahead()});
  context->op = &op;
  std::string unused;
  capture::WireWriter out(&unused);
  const auto storage = [&](c10::StorageImpl& s) { return see(s); };
  const auto generator = [](const at::Generator&) { return std::int64_t{-1}; };
  for (std::size_t i = 0; i < inputs.size() && i < 64; ++i) {
    if (((op.writes >> i) & 1) != 0) write_value(inputs[i], i, {storage, generator}, out, context->uses);
  }
  for (const TapeUse& use : context->uses) {
    write(use, false);
    lose(use.storage);
  }
  return context;
}

void TapeRecorder::end_refused(const at::RecordFunction& fn, Context* context) {
  std::string unused;
  capture::WireWriter out(&unused);
  const auto known = [&](c10::StorageImpl& s) {
    const auto it = ids_.find(&s);
    return it != ids_.end() ? it->second : capture::kNoStorage;
  };
  const auto generator = [](const at::Generator&) { return std::int64_t{-1}; };
  for (const c10::IValue& result : fn.outputs()) write_value(result, 0, {known, generator}, out, context->uses);
  for (const TapeUse& use : context->uses) {
    // What no recorded call has touched is taken for an input when it is read.
    if (use.storage == capture::kNoStorage || known_[use.storage].state == Known::kSeen) continue;
    if (known_[use.storage].state == Known::kInput && !known_[use.storage].written) continue;
    lose(use.storage);
  }
}

// Of its first argument.
bool TapeRecorder::reads_large_input(c10::ArrayRef<TapeUse> uses) const {
  if (uses.empty() || uses[0].arg != 0) return false;
  const Known& known = known_[uses[0].storage];
  return known.parts || (known.state == Known::kSeen && raw_.storages[uses[0].storage].size_bytes >= kLarge);
}

std::unique_ptr<at::ObserverContext> TapeRecorder::start_op(const at::RecordFunction& fn, TapePlaces::Where where) {
  if (full_) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!on_) return nullptr;
  if (open_generation != generation_) {
    open_ops.clear();
    exchanging = 0;
    open_generation = generation_;
  }
  const Op& op = op_of(fn);
  // A backend may call operators on buffers of its own, which other ranks' values come into.
  const bool is_inside = exchanging != 0 || is_of_backend(op, fn.inputs());
  if (op.exchanges || is_inside) {
    if (op.exchanges) ++exchanges_[op.name];
    if (op.wraps_exchange) return nullptr;
    exchange(fn, op, is_inside);
    if (!is_inside && op.is_backend_call) note_exchange(fn, op, where);
    auto context = std::make_unique<Context>();
    context->exchanges = true;
    context->generation = generation_;
    ++exchanging;
    return context;
  }
  if (op.transparent) return nullptr;
  if (autocast_.empty() && autocast_ahead())
    autocast_ = c10::toString(at::autocast::get_autocast_dtype(autocast_ahead(at::kCPU) ? at::kCPU : at::kCUDA));
  auto inputs = fn.inputs();
  // A boxed call shows its whole stack, with what its callers left below the arguments.
  if (inputs.size() > op.num_args) inputs = inputs.slice(inputs.size() - op.num_args);

  thread_local std::string written;
  written.clear();
  capture::WireWriter out(&written);
  auto context = std::make_unique<Context>();
  const auto storage = [&](c10::StorageImpl& s) { return see(s); };
  const auto generator = [&](const at::Generator& g) {
    const std::int64_t number = generator_number(g);
    if (number >= 0) context->drawn.push_back(number);
    return number;
  };
  const TapeNames names{storage, generator};
  out.var(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!write_value(inputs[i], i, names, out, context->uses)) return start_refused(op, inputs);
  }
  if (op.dropout >= 0 && inputs[static_cast<std::size_t>(op.dropout)].isDouble())
    context->drops = inputs[static_cast<std::size_t>(op.dropout)].toDouble() != 0;
  if (op.random && context->drawn.empty()) {
    if (const std::int64_t usual = default_generator(context->uses, inputs); usual >= 0)
      context->drawn.push_back(usual);
  }
  for (const std::int64_t number : context->drawn) random_before(number);
  std::vector<capture::ByteRange> rows;
  const bool picks = op.picked_by >= 0 && reads_large_input(context->uses) && picked_rows(inputs, op.picked_by, &rows);
  for (const TapeUse& use : context->uses) {
    if (op.from_host) known_[use.storage].allocation = record::kNone;
    if (use.arg < 64 && ((op.writes >> use.arg) & 1) != 0) {
      if (op.allocates && known_[use.storage].state == Known::kFresh) continue;  // resize_: still whatever was there
      const auto size_bytes = static_cast<std::int64_t>(raw_.storages[use.storage].size_bytes);
      const auto same = [&](const TapeUse& other) { return other.storage == use.storage; };
      const bool alone = std::count_if(context->uses.begin(), context->uses.end(), same) == 1;
      write(use,
            ((op.overwrites >> use.arg) & 1) != 0 && use.dense && use.begin == 0 && use.end == size_bytes && alone);
    } else if (!op.may_view) {
      read(use, picks && use.arg == 0 ? &rows : nullptr);
    }
  }
  if (full_ || raw_.events.size() + written.size() > (every_step_ ? kMaxOfEveryStep : kMaxEvents)) {
    full_ = true;
    return nullptr;
  }
  context->generation = generation_;
  context->number = ++events_;
  context->op = &op;
  capture::WireWriter event(&raw_.events);
  event.u8(static_cast<std::uint8_t>(capture::RawEvent::kStart));
  event.var(at::RecordFunction::currentThreadId());
  event.var(op.number);
  event.u8(at::GradMode::is_enabled());
  event.var(where.place == capture::kNoPlace ? 0 : std::uint64_t{where.place} + 1);
  event.u8(where.of_backward);
  const record::OpId traced = context->traced = Tracer::open_op();
  event.var(traced == record::kNone ? 0 : std::uint64_t{traced} + 1);
  event.raw(written.data(), written.size());
  if (keeps_digests_ && !op.allocates) context->digest = begin_digest(op, traced, inputs, &context->written);
  open_ops.push_back({context->number, autocast_ahead()});
  return context;
}

void TapeRecorder::end_op(const at::RecordFunction& fn, Context* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (context->generation != generation_) return;  // a new tape began meanwhile
  if (context->exchanges) {
    if (open_generation == generation_) --exchanging;
    return;
  }
  while (open_generation == generation_ && !open_ops.empty() && open_ops.back().number >= context->number)
    open_ops.pop_back();
  if (full_ || !on_) return;
  if (context->refused) return end_refused(fn, context);
  const Op& op = *context->op;
  const c10::ArrayRef<c10::IValue> results = fn.outputs();
  thread_local std::string written;
  written.clear();
  capture::WireWriter out(&written);
  c10::SmallVector<TapeUse, 4> shown;
  const std::size_t before = known_.size();
  const auto storage = [&](c10::StorageImpl& s) { return see(s); };
  const auto generator = [](const at::Generator&) { return std::int64_t{-1}; };
  const TapeNames names{storage, generator};
  bool reported = results.size() >= op.num_returns;
  const std::size_t count = reported ? op.num_returns : 0;
  out.var(count);
  for (std::size_t i = results.size() - count; reported && i < results.size(); ++i)
    reported = write_value(results[i], i, names, out, shown);
  if (reported) {
    bool only_views = true;
    for (const TapeUse& use : shown) {
      Known& known = known_[use.storage];
      const bool given = std::any_of(context->uses.begin(), context->uses.end(),
                                     [&](const TapeUse& in) { return in.storage == use.storage; });
      only_views &= given;
      // A hook may have taken it for an input before the call came back.
      const bool early =
          raw_.storages[use.storage].first_seen > context->number && !given && known.state != Known::kMade;
      if (use.storage >= before || early) {
        known.state = op.allocates ? Known::kFresh : Known::kMade;
        if (op.allocates) handed_out(use.storage, context->traced);
      }
    }
    if (op.may_view && !only_views) {
      for (const TapeUse& use : context->uses) {
        if (use.arg >= 64 || ((op.writes >> use.arg) & 1) == 0) read(use);
      }
    }
  }
  // A call that an exception ended has no results (the last one that a non-reentrant checkpoint computes again). What
  // it made is input of the call that reads it.
  if (!reported && results.size() >= op.num_returns) refuse(op);
  if (reported && context->digest != kNoDigest)
    end_digest(context->digest, results.slice(results.size() - count), context->written);
  bool drew = context->drops || (op.random && op.dropout < 0 && context->drawn.empty());
  for (const std::int64_t number : context->drawn) {
    drew = drew || moved(number);
    random_after(number);
  }
  capture::WireWriter event(&raw_.events);
  event.u8(static_cast<std::uint8_t>(capture::RawEvent::kEnd));
  event.var(context->number);
  event.u8(reported);
  if (reported) {
    event.raw(written.data(), written.size());
  } else {
    event.var(0);
  }
  ++events_;
  if (reported && drew) keep_drawn(shown, context->uses, op.writes);
}

}  // namespace finitude::observe
