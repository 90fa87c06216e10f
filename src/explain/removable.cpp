// See removable.h.
#include "explain/removable.h"

#include <algorithm>
#include <vector>

#include "explain/origin.h"

namespace finitude::explain {
namespace {

using record::kNone;
using record::OpId;
using record::TensorUse;

constexpr std::size_t kMostValues = 128;

struct Value {
  OpId reader = kNone, made = kNone;
  const TensorUse* use = nullptr;
};

bool same(const Value& a, const Value& b) {
  return a.made == b.made && a.use->storage == b.use->storage && a.use->begin < b.use->end && b.use->begin < a.use->end;
}

// What a value is computed of, itself included; not beyond `stop`.
std::vector<Value> ancestry(const record::Trace& trace, OpId reader, const TensorUse& use,
                            const Value* stop = nullptr) {
  std::vector<Value> all{{reader, producer(trace, reader, use), &use}};
  for (std::size_t i = 0; i < all.size() && all.size() < kMostValues; ++i) {
    const OpId made = all[i].made;
    if (made == kNone || trace.ops[made].allocates || (stop != nullptr && same(all[i], *stop))) continue;
    for (const TensorUse& in : trace.ops[made].inputs)
      if (in.dtype != sense::DType::kOther) all.push_back({made, producer(trace, made, in), &in});
  }
  return all;
}

// Do the zeros that `shared` is computed of reach an operand past it as well? Then it cannot be moved alone: of
// tp / (tp + fp) both are made of the same scores.
bool is_passed(const record::Trace& trace, const Value& shared, const std::vector<Value>& past) {
  const std::vector<Value> before = ancestry(trace, shared.reader, *shared.use);
  return std::ranges::any_of(past, [&](const Value& value) {
    return !same(value, shared) && value.use->health.zero != 0 &&
           std::ranges::any_of(before, [&](const Value& other) { return !same(other, shared) && same(other, value); });
  });
}

}  // namespace

std::optional<replay::Beside> common_zeros(const Scene& s, OpId division, const TensorUse& numerator,
                                           const TensorUse& denominator) {
  const std::vector<Value> above = ancestry(s.trace, division, numerator),
                           below = ancestry(s.trace, division, denominator);
  const Value* shared = nullptr;
  const auto later = [](const Value& a, const Value& b) {
    return a.made != kNone && (b.made == kNone || a.made > b.made);
  };
  for (const Value& value : below) {
    const bool common = std::ranges::any_of(above, [&](const Value& other) { return same(other, value); });
    if (!common || value.use->health.zero == 0 || (shared && !later(value, *shared))) continue;
    if (!is_passed(s.trace, value, ancestry(s.trace, division, numerator, &value)) &&
        !is_passed(s.trace, value, ancestry(s.trace, division, denominator, &value)))
      shared = &value;
  }
  if (!shared) return std::nullopt;
  replay::Beside found;
  found.call = division;
  found.zeros.kind = replay::Edit::Kind::kReplace;
  std::vector<const TensorUse*> uses;  // of each of zeros.ops
  for (const auto* values : {&above, &below}) {
    for (const Value& value : *values) {
      if (!same(value, *shared) || s.trace.ops[value.reader].is_view) continue;
      const auto known = std::ranges::find(found.zeros.ops, value.reader);
      if (known == found.zeros.ops.end()) {
        found.zeros.ops.push_back(value.reader);
        found.zeros.args.push_back(value.use->arg);
        uses.push_back(value.use);
        continue;
      }
      const TensorUse& first = *uses[static_cast<std::size_t>(known - found.zeros.ops.begin())];
      const bool is_same =
          first.begin == value.use->begin && first.end == value.use->end && first.shape == value.use->shape;
      if (!is_same) return std::nullopt;  // x * x is replaced in both arguments, x * x.t() is not
    }
  }
  if (found.zeros.ops.empty()) return std::nullopt;
  found.zeros.arg = found.zeros.args.front();
  found.below = shared->use->health.min < 0 || shared->use->health.max <= 0;
  found.above = shared->use->health.max > 0 || shared->use->health.min >= 0;
  return found;
}

}  // namespace finitude::explain
