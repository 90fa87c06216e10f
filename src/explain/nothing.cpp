// See nothing.h.
#include "explain/nothing.h"

#include <algorithm>
#include <cmath>

#include "explain/origin.h"

namespace finitude::explain {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::TensorUse;
using record::Trace;

constexpr int kNothingSteps = 12;

bool scatters(const std::string& name) {
  return one_of(name, {"scatter_add", "index_add", "scatter_reduce", "bincount"});
}

// Where all are of one sign, their sum is zero only if every one of them is.
bool of_one_sign(const TensorUse& use) { return use.health.ok() && (use.health.min >= 0 || use.health.max <= 0); }

const TensorUse* summand(const Op& op) {
  for (const char* arg : {"src", "source"})
    if (const Operand from = operand(op, arg, 9); from.tensor) return from.tensor;
  if (one_of(plain_name(op.name), {"scatter_add", "index_add", "scatter_reduce"})) return nullptr;
  for (const TensorUse& use : op.inputs)
    if (!use.written) return &use;
  return nullptr;
}

// Back to what `use` is a view, a copy or a conversion of, and scaled by a number at most; null where nothing made it.
const TensorUse* same_zeros(const Op& op) {
  if (is_carrier(op)) return carried(op);
  const Operand other = operand(op, "other", 1);
  const bool scaled =
      one_of(plain_name(op.name), {"div", "mul", "true_divide"}) && other.numel() <= 1 && other.zeros() == 0;
  return scaled ? operand(op, "self", 0).tensor : nullptr;
}

// A sum that begins with a copy or with zeros, which operators inside it write: index_add, bincount.
OpId sum_around(const Trace& trace, OpId made) {
  for (int depth = 0; made < trace.ops.size() && depth < 6; ++depth, made = trace.ops[made].parent) {
    const std::string name = plain_name(trace.ops[made].name);
    if (scatters(name) || one_of(name, {"sum", "nansum", "count_nonzero"})) return made;
  }
  return kNone;
}

bool comes_of_mask(const Trace& trace, OpId reader, const TensorUse& use) {
  const TensorUse* at = &use;
  for (int step = 0; step < kNothingSteps && at; ++step) {
    if (is_mask(*at)) return true;
    const OpId made = producer(trace, reader, *at);
    if (made == kNone) return false;
    at = same_zeros(trace.ops[made]), reader = made;
  }
  return false;
}

std::optional<Nothing> judged(const Trace& trace, OpId made) {
  const Op& op = trace.ops[made];
  const std::string name = plain_name(op.name);
  const TensorUse* from = summand(op);
  if (name == "bincount") return Nothing::kInGroup;
  if (!from) return std::nullopt;
  const bool numbers = from->dtype != sense::DType::kOther;
  if (scatters(name))
    return !numbers || (from->health.ok() && from->health.min > 0) ? std::optional(Nothing::kInGroup) : std::nullopt;
  if (name == "count_nonzero") return comes_of_mask(trace, made, *from) ? Nothing::kSelected : Nothing::kZeros;
  if (from->shape.empty() || (numbers && (!of_one_sign(*from) || from->health.zero == 0))) return std::nullopt;
  if (comes_of_mask(trace, made, *from)) return Nothing::kSelected;
  if (!numbers) return Nothing::kZeros;
  const OpId product = producer(trace, made, *from);
  if (product != kNone && plain_name(trace.ops[product].name) == "mul") {
    const auto masks = [&](const TensorUse& factor) { return comes_of_mask(trace, product, factor); };
    if (std::any_of(trace.ops[product].inputs.begin(), trace.ops[product].inputs.end(), masks)) return Nothing::kLeft;
  }
  // Zeros that arithmetic was rounded to have rules of their own.
  if (from->health.zero != from->health.numel || edge_origin(trace, made, *from, 0).kind != EdgeKind::kGiven)
    return std::nullopt;
  return Nothing::kZeros;
}

}  // namespace

bool is_mask(const TensorUse& use) {
  if (use.dtype == sense::DType::kOther) {  // of one byte each: booleans
    std::int64_t numel = 1;
    for (const std::int64_t size : use.shape) numel *= size;
    return use.dense && use.end - use.begin == numel;
  }
  const sense::Health& h = use.health;
  if (use.requires_grad || !h.ok() || h.zero == 0 || h.zero == h.numel || (h.min != 0 && h.max != 0)) return false;
  const double other = h.min == 0 ? h.max : h.min;
  const double expected = double(h.finite() - h.zero) * other * other;
  return std::fabs(h.sum_sq - expected) <= 1e-6 * expected;
}

std::optional<Nothing> sum_of_nothing(const Trace& trace, OpId reader, const TensorUse& use) {
  const TensorUse* at = &use;
  for (int step = 0; step < kNothingSteps && at; ++step) {
    const OpId made = producer(trace, reader, *at);
    if (made == kNone) return std::nullopt;
    if (const OpId sum = sum_around(trace, made); sum != kNone) return judged(trace, sum);
    at = same_zeros(trace.ops[made]), reader = made;
  }
  return std::nullopt;
}

std::string reported(Nothing nothing, bool one_of_several) {
  switch (nothing) {
    case Nothing::kSelected:
      return std::string(": a count or mean over nothing") + (one_of_several ? "; for some of them" : ";") +
             " the mask selects no element";
    case Nothing::kLeft:
      return std::string(": a sum of what a mask leaves") + (one_of_several ? "; for some of them" : ";") +
             " it leaves nothing";
    case Nothing::kInGroup:
      return ": a count over nothing; some group has no member";
    case Nothing::kZeros:
      return ": a count or sum over nothing but zeros";
  }
  return {};
}

}  // namespace finitude::explain
