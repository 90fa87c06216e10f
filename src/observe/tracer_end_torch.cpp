// An operator has ended: what it gave and wrote is looked at before its caller continues.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "observe/concrete_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/made_nodes_torch.h"
#include "observe/op_tensors_torch.h"
#include "observe/tracer_context_torch.h"
#include "observe/unseen_write_torch.h"
#include "observe/value_keeper_torch.h"
#include "observe/zoned_memory_torch.h"

namespace finitude::observe {
namespace {

// set_ hands over memory that was filled elsewhere (torch.load), _unpack_dual a tangent that other operators computed,
// the others the parts of a sparse tensor: nothing is computed.
bool hands_over(const std::string& op) {
  return op == "aten::set_" || op == "aten::_unpack_dual" || op == "aten::_values" || op == "aten::_indices" ||
         op == "aten::values" || op == "aten::indices";
}

bool mask_like(const sense::Health& h) {
  return h.nan == 0 && (h.finite() == 0 || h.min == h.max || h.finite() == h.zero);
}

constexpr std::int64_t kMostIntegers = 1 << 14;  // elements of a result

bool is_arithmetic(std::string_view op) {
  constexpr std::array<std::string_view, 14> kOperators = {
      "aten::mul", "aten::mul_", "aten::add",     "aten::add_", "aten::sub",  "aten::sub_",   "aten::rsub",
      "aten::pow", "aten::neg",  "aten::cumprod", "aten::sum",  "aten::prod", "aten::cumsum", "aten::square"};
  return std::ranges::find(kOperators, op) != kOperators.end();
}

}  // namespace

// Its functions are called in the order in which they are declared.
class Tracer::Ending {
 public:
  // `remembers`: the generation under which what is seen is known later; 0: it is not.
  Ending(Tracer& tracer, const at::RecordFunction& fn, Context& context, std::uint64_t remembers)
      : tracer_(tracer),
        fn_(fn),
        info_(*context.info),
        context_(context),
        remembers_(remembers),
        moves_(info_.is_op && info_.may_view && info_.writes == 0 && !info_.from_host),
        sketch_(tracer.sketch_.load(std::memory_order_relaxed)),
        eye_(tracer.known_, remembers),
        all_views_(info_.may_view) {
    if (context.inputs_inf) eye_.reads_infinities();
    if (context.inputs_nan) eye_.reads_nan();
  }

  void note_writes(OpenCalls& open);
  void see_results();
  void see_written();
  void judge_host_memory();
  bool is_to_be_explained() const { return bad_ && !ended_.is_view; }
  void look_again();
  void keep_call();
  // Integers may leave the range of their format, which nothing shows: what computed them is asked where a float that
  // they became is bad.
  bool computes_integers() const {
    return integers_ && context_.call && !ended_.is_view && tracer_.may_keep_integers();
  }
  void end();

 private:
  void see_result(const at::Tensor& given, std::size_t index);

  Tracer& tracer_;
  const at::RecordFunction& fn_;
  const OpInfo& info_;
  Context& context_;
  const std::uint64_t remembers_;
  const bool moves_, sketch_;
  bool integers_ = false;
  Eye eye_;
  record::EndOp ended_;
  bool all_views_, any_ = false, bad_ = false;
};

void Tracer::Ending::note_writes(OpenCalls& open) {
  bool by_parts = info_.composite && !context_.written.empty();
  for (const Written& w : context_.written) {
    const Span span{w.input.memory, w.input.use.begin, w.input.use.end};
    const bool by_part = info_.composite && open.writes.has(span);
    by_parts &= by_part;
    open.writes.wrote(span);
    // Once more: ops inside of this one may have looked meanwhile. A composite one leaves the last word to them.
    if (!by_part) tracer_.known_.written(span.memory, span.begin, span.end);
  }
  if (info_.composite && !context_.written.empty()) info_.by_parts.store(by_parts, std::memory_order_relaxed);
  open.writes.end(open.ops.size());
  for (const Span& span : context_.in_doubt) tracer_.known_.written(span.memory, span.begin, span.end);
}

void Tracer::Ending::see_results() {
  if (!context_.is_node) {
    const auto& results = fn_.outputs();
    const std::size_t count =
        std::min(results.size(), std::max<std::size_t>(info_.returns.size(), info_.is_op ? 0 : 64));
    const std::size_t first = results.size() - count;
    for (std::size_t i = 0; i < count; ++i) {
      for_each_tensor(results[first + i], [&](const at::Tensor& given) { see_result(given, i); });
    }
  }
  ended_.failed = info_.is_op && !info_.returns.empty() && fn_.outputs().empty();
}

void Tracer::Ending::see_result(const at::Tensor& given, std::size_t index) {
  if (!given.defined()) return;
  const at::Tensor t = with_memory(given);
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  if (context_.device && is_concrete(impl) && impl.is_cpu())
    wait_for_device(*std::exchange(context_.device, std::nullopt));  // non_blocking
  const Look look = sketch_                     ? info_.from_host ? Look::kFresh : Look::kNo
                    : moves_ || info_.composite ? Look::kKnown
                                                : Look::kFresh;
  record::SeenTensor seen = eye_.see(impl, look);
  if (index < info_.returns.size()) seen.use.arg = info_.returns[index];
  if (seen.memory != nullptr) {
    any_ = true;
    bad_ |= !seen.use.health.ok();
    bool known = false;
    for (const void* memory : context_.input_memory) known |= memory == seen.memory;
    all_views_ &= known;
  }
  integers_ |= seen.use.dtype == sense::DType::kOther && at::isIntegralType(t.scalar_type(), false) &&
               t.numel() <= kMostIntegers && is_arithmetic(info_.name);
  add_made_nodes(given, !context_.written.empty(), &ended_.makes);
  if (context_.keeps) context_.kept.outputs.push_back(ValueKeeper::get().look(impl, context_.keeps_values));
  ended_.outputs.push_back(std::move(seen));
}

// What it wrote and does not give back.
void Tracer::Ending::see_written() {
  for (Written& w : context_.written) {
    record::TensorUse& use = w.input.use;
    bool listed = false;
    for (const auto& out : ended_.outputs) {
      listed |= out.memory == w.input.memory && out.use.begin == use.begin && out.use.end == use.end;
    }
    if (listed || w.dtype == sense::DType::kOther) continue;
    if (sketch_) {
      ended_.outputs.push_back(std::move(w.input));
      continue;
    }
    const bool looked =
        info_.composite && use.dense && remembers_ != 0 && tracer_.known_.find(remembers_, w.region(), &use.health);
    if (!looked) use.health = w.health_now();
    use.first_bad = -1;
    use.bad_rows.clear();  // of what was there before
    bad_ |= !use.health.ok();
    if (context_.keeps) context_.kept.outputs.push_back(w.kept_now(context_.keeps_values));
    ended_.outputs.push_back(std::move(w.input));
  }
  ended_.is_view = (any_ && all_views_ && context_.written.empty()) || hands_over(info_.name);
}

// torch.tensor(...): a mask is an intended constant; anything else is data that came in bad, but within an operator
// or custom Function, which computed it where nothing is seen.
void Tracer::Ending::judge_host_memory() {
  if (!info_.from_host || !bad_) return;
  for (const auto& out : ended_.outputs) {
    const sense::Health& health = out.use.health;
    if (mask_like(health)) {
      ended_.scalars.push_back({"data", "inf", health.neg_inf ? -HUGE_VAL : HUGE_VAL, true});
    } else if (!context_.nested) {
      ended_.phase = record::Phase::kData;
    }
  }
}

// Something may have written an input unseen since it was looked at: where the result is bad, that may be the reason.
void Tracer::Ending::look_again() {
  Eye eye(tracer_.known_, 0);
  for (const Recalled& input : context_.recalled) {
    const c10::TensorImpl* tensor = nullptr;
    c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> alive;
    if (input.weakly) {
      alive = input.weakly->lock();
      tensor = alive.defined() ? alive.get() : nullptr;
    } else if (context_.call) {
      tensor = context_.call->copied(input.tensor);
    }
    if (tensor == nullptr) continue;
    record::SeenTensor seen = eye.see(*tensor, Look::kFresh);
    if (input.weakly && seen.memory != input.memory) continue;
    context_.saw(seen.use.health);
    ended_.inputs.emplace_back(input.index, std::move(seen.use));
  }
}

// After look_again(): a NaN that it read was not born here.
void Tracer::Ending::keep_call() {
  if (!context_.call || context_.inputs_nan) return;
  std::size_t size_bytes = 0;
  auto call = context_.call->finish(info_.name, fn_.overload_name(), &size_bytes);
  ended_.captured = tracer_.keep_call(context_.token.op, std::move(call), size_bytes);
}

void Tracer::Ending::end() {
  tracer_.sink_.end(context_.token, std::move(ended_));
  if (context_.keeps)
    ValueKeeper::get().put(context_.token, tracer_.sink_.module_of(context_.token), std::move(context_.kept));
}

void Tracer::end_op(const at::RecordFunction& fn, Context* context) {
  if (context->token.generation != sink_.generation()) return;  // a new trace began meanwhile
  OpenCalls& open = open_calls();
  if (context->token.generation == open.generation) open.leave(context->token.op);
  if (open.is_top()) look_at_guards(context->token.op, true);
  const OpInfo& info = *context->info;
  // What lies in full traces is not held, so that its address may be used again: nothing is known of it. Nor is it of
  // fresh memory, which host code may fill unseen (torch.tensor).
  const bool forgets =
      sink_.full() || info.allocates || context->in_kernel || others_write_.load(std::memory_order_relaxed);
  if (may_run_code_of_others(info.name, context->is_node)) unseen_writes().code_of_others();
  Ending ending(*this, fn, *context, forgets ? 0 : unseen_writes().since(context->token.generation));
  ending.note_writes(open);
  ending.see_results();
  ending.see_written();
  ending.judge_host_memory();
  if (ending.is_to_be_explained()) {
    ending.look_again();
    ending.keep_call();
  } else if (ending.computes_integers()) {
    ending.keep_call();
  }
  ending.end();
}

}  // namespace finitude::observe
