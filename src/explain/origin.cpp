// See origin.h.
#include "explain/origin.h"

#include <algorithm>
#include <cmath>

#include "explain/evidence.h"

namespace finitude::explain {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;
using record::Trace;

namespace {

constexpr int kMaxSteps = 2048;  // bounds every walk, also on a malformed trace

bool overlaps(const TensorUse& written, const TensorUse& use) {
  return written.storage == use.storage && written.begin < use.end && use.begin < written.end;
}

bool wrote(const Op& op, const TensorUse& use) {
  const auto hits = [&](const TensorUse& written) { return overlaps(written, use); };
  if (std::any_of(op.outputs.begin(), op.outputs.end(), hits)) return true;
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const TensorUse& in) { return in.written && hits(in); });
}

bool has(const TensorUse& use, double edge) { return Operand{&use, nullptr}.has(edge); }

// Handed out by an op of the trace and not written since, as the result that mv makes and gives to addmv_ with beta 0:
// what it holds is chance.
bool unwritten(const Trace& trace, OpId reader, const TensorUse& use) {
  const OpId made = producer(trace, reader, use);
  if (made != kNone) return trace.ops[made].allocates;
  const auto end = trace.ops.begin() + std::min<std::ptrdiff_t>(reader, std::ssize(trace.ops));
  return std::any_of(trace.ops.begin(), end, [&](const Op& op) {
    return op.allocates &&
           std::any_of(op.outputs.begin(), op.outputs.end(), [&](const TensorUse& out) { return overlaps(out, use); });
  });
}

// The tensor input in which the edge value is most common; null if it is in none.
const TensorUse* richest(const Trace& trace, OpId id, double edge) {
  const Op& op = trace.ops[id];
  const TensorUse* best = nullptr;
  double best_share = 0;
  for (const auto& use : op.inputs) {
    if (use.dtype == sense::DType::kOther || !has(use, edge) || (use.written && unwritten(trace, id, use))) continue;
    const double share = edge == 0 ? double(use.health.zero) / double(std::max<std::uint64_t>(use.health.numel, 1)) : 1;
    if (!best || share > best_share) best = &use, best_share = share;
  }
  return best;
}

}  // namespace

OpId divides_by_own_sum(const Trace& trace, OpId id, const Op& div) {
  const Operand numerator = operand(div, "self", 0), denominator = operand(div, "other", 1);
  if (!numerator.tensor || !denominator.tensor) return kNone;
  const TensorUse* at = denominator.tensor;
  OpId reader = id;
  for (int step = 0; step < 8; ++step) {
    const OpId made = producer(trace, reader, *at);
    if (made == kNone) return kNone;
    const Op& op = trace.ops[made];
    if (plain_name(op.name) == "sum")
      return !op.inputs.empty() && op.inputs.front().storage == numerator.tensor->storage ? made : kNone;
    const bool epsilon = plain_name(op.name) == "add" && is_constant(trace, operand(op, "other", 1));
    const TensorUse* from = is_carrier(op) ? carried(op) : epsilon ? operand(op, "self", 0).tensor : nullptr;
    if (!from) return kNone;
    at = from, reader = made;
  }
  return kNone;
}

namespace {

// What one op on the way back says: the walk continues at `next` (looking for `edge`), or ends with `kind`.
struct Step {
  const TensorUse* next = nullptr;
  double edge = 0;
  EdgeKind kind = EdgeKind::kGiven;
  double epsilon = 0;
};

Step through(const TensorUse* next, double edge, EdgeKind otherwise) { return {next, edge, otherwise, 0}; }

// A number that is not the edge, and that the format rounds to it.
bool rounds_to(double number, double edge, sense::DType dtype) {
  if (number == edge || edge == 0 || dtype == sense::DType::kOther) return false;
  const double spacing = sense::info(dtype).epsilon * std::fabs(edge) * (std::fabs(number) < std::fabs(edge) ? 0.5 : 1);
  return std::fabs(number - edge) <= spacing / 2;
}

Step step_sum(const Trace& trace, const Op& op, const std::string& name, double edge) {
  const Operand self = operand(op, "self", 0), other = operand(op, "other", 1);
  const auto number = constant(trace, other);
  const double smallest = sense::info(result_dtype(op)).min_normal;
  if (edge == 0 && number && *number != 0 && std::fabs(*number) < smallest && self.zeros() > 0)
    return {nullptr, 0, EdgeKind::kEpsilonLost, *number};
  if (edge == 0 && name != "add") {  // c - x and x - c are 0 where x is c
    const bool left = is_constant(trace, self);
    const Operand& variable = left ? other : self;
    const Operand& fixed = left ? self : other;
    const double value = constant(trace, fixed).value_or(1);  // integers do not show: 1 is what is subtracted from
    if (is_constant(trace, fixed) && rounds_to(value, std::copysign(1, value), result_dtype(op)))
      return {nullptr, std::copysign(1, value), EdgeKind::kNumberIsEdge, value};
    if (is_constant(trace, fixed) && std::fabs(value) == 1 && variable.tensor && has(*variable.tensor, value))
      return through(variable.tensor, value, EdgeKind::kCancelled);
  }
  if (edge != 0 && number && name != "rsub" && self.has(edge)) {  // x - 1e-9 is 1 where x is 1
    const double sum = edge + (name == "sub" ? -*number : *number);
    if (rounds_to(sum, edge, result_dtype(op))) return {nullptr, edge, EdgeKind::kNumberIsEdge, sum};
  }
  const bool all_zero = self.zeros() > 0 && (!other || other.zeros() > 0);
  return through(edge == 0 && all_zero ? self.tensor : nullptr, 0, edge == 0 ? EdgeKind::kCancelled : EdgeKind::kGiven);
}

// One factor is a number, and that number is 0: what comes out is a zero that was asked for.
bool times_nothing(const Trace& trace, const Op& op) {
  const auto zero_number = [](const auto& scalar) { return scalar.tensor_like && scalar.number == 0.0; };
  const auto zero_constant = [&](const TensorUse& use) {
    return use.health.numel == 1 && use.health.zero == 1 &&
           (use.dtype == sense::DType::kOther || is_constant(trace, Operand{.tensor = &use}));
  };
  return std::any_of(op.scalars.begin(), op.scalars.end(), zero_number) ||
         std::any_of(op.inputs.begin(), op.inputs.end(), zero_constant);
}

// Whole numbers and masks, whose values are not known: times one that is not 0 nothing becomes smaller.
bool times_integers(const Op& op) {
  return std::any_of(op.inputs.begin(), op.inputs.end(),
                     [](const TensorUse& use) { return use.dtype == sense::DType::kOther; });
}

// Are the largest products of its operands below the range of the format?
bool products_underflow(const Op& op) {
  double largest = 1;
  int factors = 0;
  for (const auto& use : op.inputs)
    if (one_of(use.arg, {"self", "mat1", "mat2", "batch1", "batch2", "other", "vec", "tensor", "mat"}) && !use.written)
      largest *= use.health.absmax, ++factors;
  return factors == 2 && largest < sense::info(result_dtype(op)).min_normal;
}

Step step_back(const Trace& trace, OpId id, double edge) {
  const Op& op = trace.ops[id];
  const std::string name = plain_name(op.name);
  const Operand self = operand(op, "self", 0);
  if (is_carrier(op)) {
    const TensorUse* from = carried(op);
    if (from && has(*from, edge)) return through(from, edge, EdgeKind::kGiven);
    const bool rounded =
        from && from->health.ok() && from->dtype != result_dtype(op) && from->dtype != sense::DType::kOther;
    return {nullptr, 0, !rounded ? EdgeKind::kGiven : edge == 0 ? EdgeKind::kUnderflow : EdgeKind::kSaturated, 0};
  }
  if (one_of(name, {"exp", "exp2", "softplus"})) {
    if (edge == 1 && name == "exp" && self.zeros() == 0) return {nullptr, 1, EdgeKind::kRounded, 0};
    const bool finite = self && !self.has_inf();
    return {nullptr, 0, edge == 0 && finite ? EdgeKind::kUnderflow : EdgeKind::kGiven, 0};
  }
  if (one_of(name, {"softmax", "safe_softmax", "sigmoid", "hardsigmoid", "erfc", "ndtr"}))
    return {nullptr, 0, self.has_inf() ? EdgeKind::kGiven : EdgeKind::kSaturated, 0};
  if (one_of(name, {"tanh", "erf", "expm1"}))  // 0 at 0, saturated at 1 and -1
    return edge == 0 ? through(richest(trace, id, 0), 0, EdgeKind::kUnderflow)
                     : Step{nullptr, 0, EdgeKind::kSaturated, 0};
  if (name == "neg") return through(richest(trace, id, -edge), -edge, EdgeKind::kGiven);
  if (one_of(name, {"clamp", "clamp_min", "clamp_max", "clip", "hardtanh"})) {
    // A bound beside the edge lets nothing reach it, whatever comes in, unless the format rounds it there.
    const EdgeKind lost = edge == 0 ? EdgeKind::kEpsilonLost : EdgeKind::kNumberIsEdge;
    for (const auto& [bound, side] : {std::pair("min", 1.0), std::pair("max", -1.0)}) {
      const auto number = constant(trace, operand(op, bound, 9));
      if (number && side * (*number - edge) > 0 && std::fabs(*number - edge) < 1e-2)
        return {nullptr, edge, lost, *number};
    }
    if (const auto* next = richest(trace, id, edge)) return through(next, edge, EdgeKind::kGiven);
    for (const char* bound : {"min", "max"}) {
      const auto number = constant(trace, operand(op, bound, 9));
      if (number && *number != edge && std::fabs(*number - edge) < 1e-2) return {nullptr, edge, lost, *number};
    }
    return {};
  }
  if (one_of(name, {"add", "sub", "rsub"})) return step_sum(trace, op, name, edge);
  if (edge != 0) {
    const auto factor = name == "mul" ? constant(trace, operand(op, "other", 1)) : std::nullopt;
    if (factor && self.has(edge) && rounds_to(*factor, 1, result_dtype(op)))
      return {nullptr, 1, EdgeKind::kNumberIsEdge, *factor};
    return {};
  }
  if (name == "mul" && times_nothing(trace, op)) return {};
  if (name == "mul" && times_integers(op)) return through(richest(trace, id, 0), 0, EdgeKind::kGiven);
  if (one_of(name, {"mul", "pow", "square", "prod", "cumprod", "addcmul", "float_power"}))
    return through(richest(trace, id, 0), 0, EdgeKind::kUnderflow);
  if (one_of(name, {"div", "true_divide", "reciprocal", "rsqrt"})) {
    if (self.zeros() > 0) return through(self.tensor, 0, EdgeKind::kGiven);
    return {nullptr, 0, bad_input(op) ? EdgeKind::kGiven : EdgeKind::kUnderflow, 0};
  }
  if (one_of(name, {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "matmul", "linear", "sum", "mean", "cumsum",
                    "logsumexp"}))
    return through(richest(trace, id, 0), 0, products_underflow(op) ? EdgeKind::kUnderflow : EdgeKind::kCancelled);
  if (one_of(name, {"norm", "linalg_vector_norm"})) return through(richest(trace, id, 0), 0, EdgeKind::kUnderflow);
  if (one_of(name, {"sqrt", "abs", "amax", "amin", "max", "min", "maximum", "minimum", "relu", "threshold", "where"}))
    return through(richest(trace, id, 0), 0, EdgeKind::kGiven);
  return {};
}

// exp of a log-probability is the softmax or sigmoid itself.
bool of_log_probability(const Trace& trace, OpId id) {
  const Operand self = operand(trace.ops[id], "self", 0);
  const OpId made = self.tensor ? producer(trace, id, *self.tensor) : kNone;
  return made != kNone &&
         one_of(plain_name(trace.ops[made].name), {"log_softmax", "log_sigmoid", "log_sigmoid_forward"});
}

}  // namespace

namespace {

// A partial write of finite values cannot be where a bad value of `use` came from.
bool cannot_be_source(const Op& op, const TensorUse& use) {
  for (const auto& written : op.outputs)
    if (overlaps(written, use) &&
        (!written.health.ok() || (written.dense && written.begin <= use.begin && written.end >= use.end)))
      return false;
  return !op.allocates;
}

// Does the inner op write every element of something that the op around it gives?
bool writes_all(const Op& inner, const Op& around) {
  for (const auto& written : inner.outputs)
    for (const auto& given : around.outputs)
      if (written.storage == given.storage && written.dense && written.begin <= given.begin && written.end >= given.end)
        return true;
  return false;
}

// Makes memory, or a start value in it, for the op around it, which then writes it itself: the fill inside a sum or a
// dot product, the copy of the bias inside addmm, that of `self` inside scatter. A copy inside clone or reshape is all
// that those do.
bool only_begins(const Trace& trace, OpId id, const TensorUse& use) {
  const std::string made_by = plain_name(trace.ops[id].name);
  const bool copies = made_by == "copy";
  if (!trace.ops[id].allocates && !copies && !one_of(made_by, {"fill", "zero"})) return false;
  const OpId parent = trace.ops[id].parent;
  if (parent >= id || trace.ops[parent].is_node || trace.ops[parent].allocates || !wrote(trace.ops[parent], use))
    return false;
  const Op& around = trace.ops[parent];
  if (copies && (is_carrier(around) || !writes_all(trace.ops[id], around))) return false;
  const std::string name = plain_name(around.name);
  return !name.ends_with("_like") && !name.starts_with("new_") &&
         std::any_of(around.inputs.begin(), around.inputs.end(), [](const TensorUse& in) { return !in.written; });
}

// A copy with which an operator ends, as gather does with indices of many dimensions: its source is memory of that
// operator's own, which the kernel wrote after the last operator inside that did. What lay there before is whatever the
// memory held.
bool brings_unseen(const Trace& trace, OpId id) {
  const Op& copy = trace.ops[id];
  const TensorUse* from = plain_name(copy.name) == "copy" ? carried(copy) : nullptr;
  if (!from || from->storage == kNone) return false;
  for (OpId made = id; made-- > copy.parent + 1;) {
    const Op& op = trace.ops[made];
    if (op.is_view || op.is_node || op.parent != copy.parent || !wrote(op, *from)) continue;
    return std::none_of(op.outputs.begin(), op.outputs.end(), [&](const TensorUse& written) {
      return overlaps(written, *from) && same_values(written.health, from->health);
    });
  }
  return false;
}

OpId last_writer(const Trace& trace, OpId reader, const TensorUse& use, bool of_bad_value) {
  if (use.storage == kNone || reader > trace.ops.size()) return kNone;
  // Downwards by start: of nested ops that wrote the same memory, the innermost comes first.
  for (OpId id = reader; id-- > 0;) {
    const Op& op = trace.ops[id];
    if (op.is_node || op.is_view) continue;
    if (reader < trace.ops.size() && op.end_order > trace.ops[reader].end_order) continue;  // it encloses the reader
    if (!wrote(op, use) || (of_bad_value && cannot_be_source(op, use)) || only_begins(trace, id, use)) continue;
    const bool is_part = op.parent < id && !trace.ops[op.parent].is_node && wrote(trace.ops[op.parent], use);
    return is_part && brings_unseen(trace, id) ? op.parent : id;
  }
  return kNone;
}

}  // namespace

bool same_values(const sense::Health& a, const sense::Health& b) {
  return a.nan == b.nan && a.pos_inf == b.pos_inf && a.neg_inf == b.neg_inf && a.zero == b.zero && a.min == b.min &&
         a.max == b.max && a.sum_sq == b.sum_sq;
}

OpId producer(const Trace& trace, OpId reader, const TensorUse& use) { return last_writer(trace, reader, use, false); }

OpId bad_producer(const Trace& trace, OpId reader, const TensorUse& use) {
  return last_writer(trace, reader, use, true);
}

bool is_carrier(const Op& op) {
  if (op.is_view) return true;
  return one_of(plain_name(op.name), {"clone",          "copy",          "to",
                                      "to_copy",        "contiguous",    "detach",
                                      "lift_fresh",     "expand",        "reshape",
                                      "unsafe_view",    "index",         "index_select",
                                      "gather",         "take",          "cat",
                                      "stack",          "repeat",        "repeat_interleave",
                                      "flip",           "roll",          "masked_select",
                                      "select_scatter", "slice_scatter", "constant_pad_nd",
                                      "type_as",        "float",         "half"});
}

bool looks_up(const Op& op) {
  return one_of(plain_name(op.name),
                {"index", "index_select", "gather", "take", "take_along_dim", "masked_select", "embedding"});
}

const TensorUse* carried(const Op& op) {
  const TensorUse* first = nullptr;
  const bool overwrites = plain_name(op.name) == "copy";
  for (const auto& use : op.inputs) {
    if (use.dtype == sense::DType::kOther) continue;
    if (overwrites && use.written) continue;  // copy_: the old contents do not matter
    if (use.arg == "src") return &use;
    if (!first || (!use.health.ok() && first->health.ok())) first = &use;
  }
  return first;
}

BadOrigin bad_origin(const Trace& trace, OpId reader, const TensorUse& use) {
  BadOrigin origin;
  const TensorUse* at = &use;
  for (int step = 0; step < kMaxSteps; ++step) {
    const OpId made = last_writer(trace, reader, *at, true);
    if (made == kNone) {
      origin.storage = at->storage;
      origin.intended =
          at->storage < trace.storages.size() && trace.storages[at->storage].origin == record::Origin::kConstant;
      return origin;
    }
    const Op& op = trace.ops[made];
    const TensorUse* next = bad_input(op);
    if (!next) {
      if (!bad_output(op)) {  // written finite, read bad: no op did that
        origin.storage = at->storage;
        return origin;
      }
      origin.op = made;
      origin.intended = !inputs_finite(op);  // a non-finite number in the call
      return origin;
    }
    at = next, reader = made;
  }
  return origin;
}

std::vector<ZeroLink> way_of_zeros(const Trace& trace, OpId reader, const TensorUse& use) {
  std::vector<ZeroLink> way;
  const TensorUse* at = &use;
  for (int steps = 0; steps < kMaxSteps; ++steps) {
    const OpId made = producer(trace, reader, *at);
    if (made == kNone) return way;
    const Step step = step_back(trace, made, 0);
    const bool passes = step.next && step.edge == 0;
    way.push_back({made, passes ? step.next : nullptr});
    if (!passes) return way;
    at = step.next, reader = made;
  }
  return way;
}

EdgeOrigin edge_origin(const Trace& trace, OpId reader, const TensorUse& use, double edge) {
  EdgeOrigin origin;
  const TensorUse* at = &use;
  bool over_own_sum = false;
  for (int steps = 0; steps < kMaxSteps; ++steps) {
    const OpId made = producer(trace, reader, *at);
    if (made == kNone) return {};
    const Op& op = trace.ops[made];
    if (edge == 0 && plain_name(op.name) == "div")
      over_own_sum = over_own_sum || divides_by_own_sum(trace, made, op) != kNone;
    const Step step = step_back(trace, made, edge);
    origin.op = made;
    origin.half = sense::is_half(result_dtype(op));
    if (!step.next) {
      const bool probability = step.kind == EdgeKind::kUnderflow && (over_own_sum || of_log_probability(trace, made));
      origin.kind = probability ? EdgeKind::kSaturated : step.kind;
      origin.epsilon = step.epsilon;
      origin.edge = step.kind == EdgeKind::kNumberIsEdge ? step.edge : edge;
      return origin;
    }
    at = step.next, edge = step.edge, reader = made;
  }
  return {};
}

std::string rounded_number(const Trace& trace, const EdgeOrigin& origin) {
  const double beside = origin.epsilon - origin.edge;
  return figure(origin.edge) + (beside < 0 ? " - " : " + ") + figure(std::fabs(beside)) + " is " + figure(origin.edge) +
         " in " + dtype_name(result_dtype(trace.ops[origin.op]));
}

std::string distinct_number(const Trace& trace, const EdgeOrigin& origin) {
  const sense::DType dtype = result_dtype(trace.ops[origin.op]);
  double beside = 1e-6;
  while (beside < 4 * sense::info(dtype).epsilon) beside *= 10;
  return "a number that " + dtype_name(dtype) + " can tell from " + figure(origin.edge) + ", such as " +
         figure(origin.edge) + (origin.epsilon < origin.edge ? " - " : " + ") + figure(beside);
}

}  // namespace finitude::explain
