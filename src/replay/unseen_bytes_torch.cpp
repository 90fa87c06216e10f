#include "replay/unseen_bytes_torch.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "observe/tensor_view_torch.h"
#include "record/unseen_write.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"
#include "replay/traced_calls.h"

namespace finitude::replay {
namespace {

using record::OpId;

constexpr std::size_t kMostReported = 4;  // each may take a replay

OpId writer_of(const record::Trace& trace, OpId change) {
  const record::TensorUse& span = trace.ops[change].outputs.front();
  for (OpId id = change; id-- > 0;) {
    const record::Op& op = trace.ops[id];
    if (op.is_node || op.is_view || op.name == record::kUnseenWrite) continue;
    const auto is_span = [&](const record::TensorUse& use) {
      return use.storage == span.storage && use.begin == span.begin && use.end == span.end;
    };
    if (std::ranges::any_of(op.outputs, is_span)) return id;
  }
  return record::kNone;
}

bool same_range(const sense::Health& a, const sense::Health& b) {
  return a.numel == b.numel && a.min == b.min && a.max == b.max && a.zero == b.zero;
}

// What the call at `entry` left of that shape, type and range.
class TakeWritten : public PlayObserver {
 public:
  TakeWritten(std::size_t entry, const at::Tensor& like, const sense::Health& health)
      : entry_(entry), like_(like), health_(health) {}
  bool after(const PlayedCall& call) override {
    if (call.index != entry_) return true;
    for (const auto& values : {call.results, call.arguments}) {
      for (const c10::IValue& value : values) {
        if (value.isTensor()) look(value.toTensor());
        if (!value.isTensorList()) continue;
        for (const at::Tensor& one : value.toTensorVector()) look(one);
      }
    }
    return false;
  }
  at::Tensor found;

 private:
  void look(const at::Tensor& tensor) {
    observe::TensorView v;
    if (found.defined() || !tensor.defined() || tensor.sizes() != like_.sizes() || tensor.dtype() != like_.dtype())
      return;
    if (observe::view_of(*tensor.unsafeGetTensorImpl(), &v) && same_range(observe::full(v), health_))
      found = tensor.clone();
  }

  const std::size_t entry_;
  const at::Tensor& like_;
  const sense::Health& health_;
};

struct Reported {
  std::int64_t changed = 0, first = 0, end = 0;  // bytes; of the span
};

// Element by element, in the order of memory where both are laid out alike.
Reported compare(at::Tensor now, at::Tensor before) {
  if (now.strides() != before.strides() || !now.is_non_overlapping_and_dense()) {
    now = now.contiguous();
    before = before.contiguous();
  }
  const auto* a = static_cast<const char*>(now.const_data_ptr());
  const auto* b = static_cast<const char*>(before.const_data_ptr());
  const auto item = static_cast<std::int64_t>(now.itemsize());
  Reported reported;
  for (std::int64_t at = 0; at < now.numel() * item; at += item) {
    if (std::memcmp(a + at, b + at, static_cast<std::size_t>(item)) == 0) continue;
    if (reported.changed == 0) reported.first = at;
    reported.changed += item;
    reported.end = at + item;
  }
  return reported;
}

// Without the values that were there: those that are out of the range that they had.
Reported out_of_range(const at::Tensor& now, const sense::Health& before) {
  const at::Tensor values = now.to(at::kDouble).contiguous().view(-1);
  const auto* at = values.const_data_ptr<double>();
  const auto item = static_cast<std::int64_t>(now.itemsize());
  Reported reported;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    if (at[i] >= before.min && at[i] <= before.max) continue;
    if (reported.changed == 0) reported.first = i * item;
    reported.changed += item;
    reported.end = (i + 1) * item;
  }
  return reported;
}

void put(record::Op& op, std::string_view name, std::int64_t number) {
  op.scalars.push_back({std::string(name), std::to_string(number), static_cast<double>(number), false});
}

}  // namespace

void report_unseen_bytes(const capture::Tape* tape, const observe::Tracer& tracer, record::Trace* trace) try {
  std::optional<Played> without;
  std::size_t reported = 0;
  for (OpId id = 0; id < trace->ops.size() && reported < kMostReported; ++id) {
    if (trace->ops[id].name != record::kUnseenWrite || trace->ops[id].outputs.empty()) continue;
    ++reported;
    const observe::CapturedCall* copy = tracer.captured(id);
    if (copy == nullptr || copy->args.size() != 1 || !copy->args[0].isTensor() || copy->args[0].toTensor().is_complex())
      continue;
    const at::Tensor& now = copy->args[0].toTensor();
    const sense::Health before = trace->ops[id].inputs.front().health;
    const OpId writer = writer_of(*trace, id);
    const auto entry =
        tape != nullptr && writer != record::kNone ? TracedCalls(*tape, *trace).entry_of(writer) : std::nullopt;
    at::Tensor then;
    if (entry) {
      TakeWritten taken(*entry, now, before);
      play(*tape, {}, &taken);
      then = taken.found;
    }
    const Reported found = then.defined() ? compare(now, then) : out_of_range(now, before);
    record::Op& op = trace->ops[id];
    if (found.changed > 0) {
      put(op, record::kChangedBytes, found.changed);
      put(op, record::kFirstByte, found.first);
      put(op, record::kEndByte, found.end);
      if (!then.defined()) put(op, record::kAtLeast, 1);
    }
    if (tape == nullptr) continue;
    if (!without) without = play(*tape, {});
    if (!without->outcomes.empty() && without->why_not.empty() && without->bad().empty())
      put(op, record::kFiniteWithout, 1);
  }
} catch (const std::exception&) {  // less is known then
}

}  // namespace finitude::replay
