#include "explain/written_softmax.h"

#include <algorithm>
#include <string>
#include <vector>

#include "explain/evidence.h"
#include "explain/origin.h"

namespace finitude::explain {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;
using record::Trace;

namespace {

bool is_read_by(const Op& op, const TensorUse& made) {
  return std::ranges::any_of(op.inputs, [&](const TensorUse& in) {
    return in.storage == made.storage && in.begin < made.end && made.begin < in.end;
  });
}

bool is_part(const Trace& trace, OpId id, OpId of) {
  for (int depth = 0; id < trace.ops.size() && depth < 16; ++depth, id = trace.ops[id].parent)
    if (id == of) return true;
  return false;
}

// The only call that reads what `made` gave, in the phase of that; kNone: none does, or several.
OpId only_reader(const Trace& trace, OpId made) {
  OpId found = kNone;
  for (OpId id = made + 1; id < trace.ops.size(); ++id) {
    const Op& op = trace.ops[id];
    if (op.phase != trace.ops[made].phase || !is_read_by(op, trace.ops[made].outputs.front())) continue;
    if (is_part(trace, id, made) || (found != kNone && is_part(trace, id, found))) continue;
    if (found != kNone) return kNone;
    found = id;
  }
  return found;
}

// Does the quotient have each exponential, or one of each row, over the sum of that row?
bool is_row_by_row(const TensorUse& exponentials, const TensorUse& numerator, const TensorUse& denominator,
                   const std::vector<std::int64_t>& dims) {
  if (numerator.shape.size() < exponentials.shape.size()) return denominator.shape == numerator.shape;
  if (numerator.shape != exponentials.shape) return false;
  if (dims.empty()) return denominator.health.numel == 1;
  std::vector<std::int64_t> kept = exponentials.shape;
  const auto rank = static_cast<std::int64_t>(kept.size());
  for (const std::int64_t dim : dims) {
    const std::int64_t at = dim < 0 ? dim + rank : dim;
    if (at < 0 || at >= rank) return false;
    kept[static_cast<std::size_t>(at)] = 1;
  }
  return denominator.shape == kept;
}

}  // namespace

OpId sum_of_softmax(const Trace& trace, OpId exp) {
  if (exp >= trace.ops.size() || trace.ops[exp].outputs.empty() || trace.ops[exp].is_node) return kNone;
  const TensorUse& exponentials = trace.ops[exp].outputs.front();
  if (exponentials.storage == kNone) return kNone;
  OpId found = kNone;
  for (OpId id = exp + 1; id < trace.ops.size(); ++id) {
    const Op& op = trace.ops[id];
    if (op.phase != trace.ops[exp].phase || !is_read_by(op, exponentials)) continue;
    const std::string name = plain_name(op.name);
    // Along which dimension a view sums does not show in its numbers.
    if (op.is_view && one_of(name, {"t", "transpose", "permute", "numpy_T", "movedim", "swapaxes"})) return kNone;
    if (found != kNone || !one_of(name, {"div", "true_divide"})) continue;
    const OpId sum = divides_by_own_sum(trace, id, op);
    if (sum == kNone || trace.ops[sum].inputs.front().shape != exponentials.shape) continue;
    if (is_row_by_row(exponentials, *operand(op, "self", 0).tensor, *operand(op, "other", 1).tensor,
                      dims_of(trace.ops[sum])))
      found = sum;
  }
  return found;
}

LogOfSum log_of_sum(const Trace& trace, OpId exp) {
  if (exp >= trace.ops.size() || trace.ops[exp].outputs.empty() || trace.ops[exp].is_node) return {};
  const OpId sum = only_reader(trace, exp);
  if (sum == kNone || plain_name(trace.ops[sum].name) != "sum" || trace.ops[sum].outputs.empty()) return {};
  if (trace.ops[sum].inputs.front().shape != trace.ops[exp].outputs.front().shape) return {};
  const OpId log = only_reader(trace, sum);
  if (log == kNone || trace.ops[log].name != "aten::log") return {};
  return {sum, log};
}

void add_less_maximum(Edits& edits, const Trace& trace, OpId exp) {
  if (const OpId sum = sum_of_softmax(trace, exp); sum != kNone)
    edits.less_maximum("self", dims_of(trace.ops[sum]))
        .advised(
            "subtract the maximum first, which leaves exp(x) over its sum what it is, or call torch.softmax or "
            "F.log_softmax, which do so");
  if (const LogOfSum of = log_of_sum(trace, exp); of.log != kNone)
    edits.less_maximum("self", dims_of(trace.ops[of.sum]), of.log)
        .advised("torch.logsumexp(x, dim) in the place of log(sum(exp(x)))");
}

}  // namespace finitude::explain
