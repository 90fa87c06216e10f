// An operator begins: what it reads and is about to change is looked at before it runs.
#include <algorithm>
#include <utility>

#include "observe/concrete_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/effort.h"
#include "observe/made_nodes_torch.h"
#include "observe/op_tensors_torch.h"
#include "observe/surely_finite.h"
#include "observe/tracer_context_torch.h"
#include "observe/unseen_write_torch.h"
#include "observe/value_keeper_torch.h"
#include "observe/zoned_memory_torch.h"
#include "record/argument_words.h"
#include "record/exchange.h"

namespace finitude::observe {
namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;

Arguments arguments_of(const at::RecordFunction& fn, const OpInfo& info) {
  const Arguments inputs = fn.inputs();
  // A boxed call shows its whole stack (Dispatcher::callBoxed), with what its callers left below the arguments.
  return info.is_op && inputs.size() > info.args.size() ? inputs.slice(inputs.size() - info.args.size()) : inputs;
}

bool has_tensor(Arguments inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& v) { return v.isTensor(); });
}

// The memory that the op is going to write, and so all that lies in it.
std::vector<const void*> memory_to_change(Arguments inputs, std::uint64_t writes) {
  std::vector<const void*> changing;
  if (writes == 0) return changing;
  for (std::size_t i = 0; i < inputs.size() && i < 64; ++i) {
    if (((writes >> i) & 1) != 0)
      for_each_tensor(inputs[i], [&](const at::Tensor& t) { changing.push_back(memory_of(t)); });
  }
  return changing;
}

}  // namespace

// Its functions are called in the order in which they are declared.
class Tracer::Beginning {
 public:
  Beginning(Tracer& tracer, const OpInfo& info, Arguments inputs, const OpenCalls& open, bool is_top, Context& context)
      : tracer_(tracer),
        info_(info),
        inputs_(inputs),
        open_(open),
        context_(context),
        writes_(writes_of(info, inputs)),
        moves_(info.may_view && writes_ == 0),
        changing_(memory_to_change(inputs, writes_)),
        says_what_it_writes_(info.name.starts_with("aten::")),
        by_parts_(info.by_parts.load(std::memory_order_relaxed)),
        sketch_(tracer.sketch_.load(std::memory_order_relaxed)),
        afresh_(is_top && info.is_op && !sketch_ && unseen_writes().on),
        reads_saved_(open.node() != record::kNone && open.functions.empty()),
        known_since_(known_since()),
        eye_(tracer.known_, known_since_) {
    begun_.inputs.reserve(4);
    context_.input_memory.reserve(4);
  }

  void describe(std::uint32_t stack);
  void read_inputs();
  void copy_what_changes();
  void name_nodes(const at::RecordFunction& fn);
  void report_unseen_writes();
  record::EventSink::Token begin() { return tracer_.sink_.begin(std::move(begun_)); }

 private:
  std::uint64_t known_since() const;
  bool changes(const at::Tensor& t) const;
  void read_tensor(const at::Tensor& given, std::size_t arg);
  void read_scalar(const c10::IValue& value, std::size_t arg);

  Tracer& tracer_;
  const OpInfo& info_;
  const Arguments inputs_;
  const OpenCalls& open_;
  Context& context_;
  const std::uint64_t writes_;  // by argument, of this call
  const bool moves_;            // views compute nothing: their output says all
  const std::vector<const void*> changing_;
  const bool says_what_it_writes_;  // only schemas of aten can be taken at their word
  const bool by_parts_, sketch_;
  const bool afresh_;       // what a part of an operator reads was looked at when that began, or written inside of it
  const bool reads_saved_;  // in a node that PyTorch generated
  const std::uint64_t known_since_;
  Eye eye_;
  record::BeginOp begun_;
  std::vector<UnseenWrite> unseen_;
};

std::uint64_t Tracer::Beginning::known_since() const {
  if (!says_what_it_writes_ && record::exchanges_values(info_.name)) tracer_.others_write_ = true;
  // A kernel (gather, index_add) writes memory of its own between the operators that it calls: what those saw is not
  // what is there.
  const bool forgotten = context_.in_kernel || tracer_.others_write_.load(std::memory_order_relaxed);
  return forgotten ? 0 : unseen_writes().since(open_.generation);
}

bool Tracer::Beginning::changes(const at::Tensor& t) const {
  if (!says_what_it_writes_) return true;
  return !changing_.empty() && std::find(changing_.begin(), changing_.end(), memory_of(t)) != changing_.end();
}

void Tracer::Beginning::describe(std::uint32_t stack) {
  begun_.generation = open_.generation;
  record::Op& op = begun_.op;
  op.name = info_.name;
  op.is_node = context_.is_node;
  op.allocates = info_.allocates;
  op.random = info_.random;
  op.parent = open_.op();
  op.node = open_.node();
  op.phase = context_.is_node || !open_.nodes.empty() ? record::Phase::kBackward : thread_phase();
  op.micro_batch = tracer_.micro_batch_.load(std::memory_order_relaxed);
  op.stack = stack;
  if (ValueKeeper& keeper = ValueKeeper::get();
      keeper.on() && info_.is_op && !moves_ && !info_.allocates && !info_.from_host) {
    context_.keeps = keeper.wants(info_.name, op.phase);
    context_.keeps_values = op.parent == record::kNone || op.parent == op.node;
  }
}

void Tracer::Beginning::read_inputs() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const bool holds_tensors = for_each_tensor(inputs_[i], [&](const at::Tensor& t) { read_tensor(t, i); });
    if (!holds_tensors && info_.is_op) read_scalar(inputs_[i], i);
  }
}

void Tracer::Beginning::read_tensor(const at::Tensor& given, std::size_t arg) {
  if (!given.defined() || info_.from_host) return;
  const at::Tensor t = with_memory(given);
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  if (is_concrete(impl) && !impl.is_cpu() && is_recorded_device(impl.device())) context_.device = impl.device();
  // What is only overwritten was not read: its old content explains nothing.
  const bool read = !sketch_ && !moves_ && (arg >= 64 || ((info_.overwrites >> arg) & 1) == 0);
  bool recalled = false;
  sense::Health before;
  const bool was_known =
      afresh_ && read && open_.functions.empty() && health_known(tracer_.known_, known_since_, impl, &before);
  const Look look = !read ? Look::kNo : says_what_it_writes_ && !afresh_ ? Look::kKnown : Look::kFresh;
  record::SeenTensor seen = eye_.see(impl, look, &recalled);
  if (was_known && is_unseen_write(t, seen, before, reads_saved_) && !is_of_compiler(tracer_.places_))
    unseen_.push_back(unseen_write(t, seen, before));
  else if (was_known && !seen.use.health.ok())
    tracer_.sink_.ask_who_is_freed();  // whose memory lies next to it is a part of the explanation
  if (recalled) {
    auto& input = context_.recalled.emplace_back();
    input.index = begun_.inputs.size();
    input.memory = seen.memory;
    input.tensor = &impl;
    if (!changes(t)) input.weakly.emplace(t.getIntrusivePtr());
  }
  if (arg < info_.args.size()) seen.use.arg = info_.args[arg];
  // A sparse tensor may get other memory for its values; what it has then is among the outputs.
  seen.use.written = arg < 64 && ((writes_ >> arg) & 1) != 0 && t.is_same(given);
  context_.saw(seen.use.health);
  if (seen.use.written && seen.memory != nullptr) {
    if (!by_parts_) tracer_.known_.written(seen.memory, seen.use.begin, seen.use.end);  // else each part does it
    context_.written.push_back(written_by(impl, seen));
  } else if (!says_what_it_writes_ && seen.memory != nullptr) {
    context_.in_doubt.push_back({seen.memory, seen.use.begin, seen.use.end});
  }
  context_.input_memory.push_back(seen.memory);
  if (context_.keeps)
    context_.kept.inputs.push_back(read ? ValueKeeper::get().look(impl, context_.keeps_values) : record::KeptValue());
  begun_.inputs.push_back(std::move(seen));
}

void Tracer::Beginning::read_scalar(const c10::IValue& value, std::size_t arg) {
  record::ScalarUse scalar;
  if (arg < info_.args.size()) scalar.arg = info_.args[arg];
  scalar.text = record::argument_word(scalar.arg, text_of(value, &scalar.number));
  scalar.tensor_like = value.isScalar() && (scalar.arg == "other" || scalar.arg == "self" || scalar.arg == "value" ||
                                            scalar.arg == "fill_value" || scalar.arg == "exponent");
  begun_.op.scalars.push_back(std::move(scalar));
}

// What an operator is about to overwrite is copied, unless its parts do that or nothing bad can come of it. The
// ranges for that are those of an earlier look; nobody writes unseen between the operators of an optimizer.
void Tracer::Beginning::copy_what_changes() {
  const record::Op& op = begun_.op;
  if (info_.is_op && !sketch_ && !info_.allocates && !info_.from_host && !by_parts_ && !op.is_node && !moves_ &&
      (writes_ == 0 || op.phase != record::Phase::kOptimizer ||
       !surely_finite(info_.name, begun_.inputs, op.scalars))) {
    context_.call.emplace(inputs_, [&](std::size_t, const at::Tensor& t) { return changes(t); });
  }
}

void Tracer::Beginning::name_nodes(const at::RecordFunction& fn) {
  if (begun_.op.is_node) {
    begun_.of_node = node_key(fn.forwardThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  } else if (!info_.is_op && fn.seqNr() >= 0) {
    // A custom Function: its node gets the sequence number that is next now; no op output shows it.
    begun_.makes = node_key(at::RecordFunction::currentThreadId(), static_cast<std::uint64_t>(fn.seqNr()));
  }
}

// They come right before their reader, so that it reads what they wrote.
void Tracer::Beginning::report_unseen_writes() {
  if (!unseen_.empty()) tracer_.sink_.ask_who_is_freed();
  for (UnseenWrite& write : unseen_) {
    record::BeginOp change = begin_of(write, begun_.op, open_.generation);
    const record::EventSink::Token token = tracer_.sink_.begin(std::move(change));
    if (!token) break;
    record::EndOp done;
    done.outputs.push_back(std::move(write.after));
    done.captured = tracer_.keep_call(token.op, std::move(write.copy), write.size_bytes);
    tracer_.sink_.end(token, std::move(done));
  }
}

bool Tracer::is_beyond_bound() const {
  return sink_.full() || effort().ops.load(std::memory_order_relaxed) >= until_ops_ ||
         effort().read_bytes.load(std::memory_order_relaxed) >= until_read_bytes_;
}

std::unique_ptr<at::ObserverContext> Tracer::start_op(const at::RecordFunction& fn) {
  const OpInfo& info = op_info(fn);
  const bool is_node = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if (info.transparent) return nullptr;
  const Arguments inputs = arguments_of(fn, info);
  if (!info.is_op && !is_node && !has_tensor(inputs)) return nullptr;
  if (is_beyond_bound()) {
    sink_.drop();
    return nullptr;
  }
  OpenCalls& open = open_calls();
  open.enter(sink_.generation());
  const bool is_top = open.is_top();
  std::uint32_t stack = record::kNone;
  const std::uint32_t runs_from = is_node ? intern_stack() : record::kNone;
  if (is_top && !is_node) {
    stack = intern_stack();
    if (!open.nodes.empty()) stack = sink_.stack_in_node(stack, open.called_from.back(), open.nodes.back());
  }

  auto context = std::make_unique<Context>();
  context->info = &info;
  context->is_node = is_node;
  context->nested = !open.ops.empty();
  context->in_kernel = !open.kernels.empty();
  Beginning beginning(*this, info, inputs, open, is_top, *context);
  beginning.describe(stack);
  beginning.read_inputs();
  beginning.copy_what_changes();
  beginning.name_nodes(fn);
  count(&effort().ops, 1);
  beginning.report_unseen_writes();
  context->token = beginning.begin();
  if (!context->token || context->token.generation != open.generation) return nullptr;
  if (is_top) look_at_guards(context->token.op, false);

  open.ops.push_back(context->token.op);
  open.writes.begin();
  if (is_node) {
    open.nodes.push_back(context->token.op);
    open.called_from.push_back(runs_from);
  }
  if (may_run_code_of_others(info.name, is_node))
    open.functions.push_back(context->token.op);
  else if (!is_node && !info.composite)
    open.kernels.push_back(context->token.op);
  return context;
}

}  // namespace finitude::observe
