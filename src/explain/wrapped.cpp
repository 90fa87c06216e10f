#include "explain/wrapped.h"

#include <deque>
#include <set>
#include <utility>

#include "explain/evidence.h"
#include "explain/origin.h"

namespace finitude::explain {
namespace {

using record::OpId;
using record::TensorUse;

constexpr std::size_t kMostIntegerOps = 64;

bool holds_integers(const TensorUse& use) { return use.dtype == sense::DType::kOther; }

// Takes the values of one tensor along: a copy, a cast, a factor that is a number.
const TensorUse* carried_from(const record::Trace& trace, const record::Op& op) {
  if (is_carrier(op)) {  // origin.h's `carried` skips integers
    const TensorUse* first = nullptr;
    for (const TensorUse& use : op.inputs) {
      if (use.arg == "src") return &use;
      if (!first && !use.written) first = &use;
    }
    return first;
  }
  if (!one_of(plain_name(op.name), {"mul", "div", "neg"})) return nullptr;
  const Operand self = operand(op, "self", 0), other = operand(op, "other", 1);
  return self.tensor && (!other || is_constant(trace, other)) ? self.tensor : nullptr;
}

struct IntegerWrap {
  OpId op = record::kNone;
  replay::Wrapped wrapped;
};

// Back from what `reader` was given, through copies and casts to integers, and through what computes with those.
std::optional<IntegerWrap> find_wrap(const Scene& s, OpId reader) {
  std::deque<std::pair<OpId, const TensorUse*>> open;
  std::set<OpId> seen;
  for (const TensorUse& use : s.trace.ops[reader].inputs) open.emplace_back(reader, &use);
  for (; !open.empty() && seen.size() < kMostIntegerOps; open.pop_front()) {
    const auto [at, use] = open.front();
    OpId made = producer(s.trace, at, *use);
    if (made == record::kNone || !seen.insert(made).second) continue;
    const record::Op& op = s.trace.ops[made];
    if (!holds_integers(*use)) {
      if (const TensorUse* from = carried_from(s.trace, op)) open.emplace_back(made, from);
      continue;
    }
    // A cast is an operator around the copy that it makes.
    OpId whole = made;
    for (int depth = 0; whole < s.trace.ops.size() && depth < 3; ++depth, whole = s.trace.ops[whole].parent) {
      if (s.trace.ops[whole].is_node) break;
      if (auto wrapped = s.evidence.lab->wrapped(whole)) return IntegerWrap{whole, *std::move(wrapped)};
    }
    for (const TensorUse& in : op.inputs)
      if (holds_integers(in)) open.emplace_back(made, &in);
  }
  return std::nullopt;
}

}  // namespace

void report_wrapped(Finding& finding, const Evidence& evidence) {
  if (!evidence.lab || !one_of(finding.cause_class, {"negative-domain", "log-of-negative", "division-by-zero",
                                                     "log-of-zero", "domain-edge", "unknown"}))
    return;
  const Scene s(evidence);
  if (!s.first || s.backward || s.birth.kind != "forward") return;
  const auto found = find_wrap(s, s.culprit);
  if (!found) return;
  const record::Op& op = s.trace.ops[found->op];
  const std::string name = plain_name(op.name) == "to_copy" ? "the cast to " : plain_name(op.name) + " of ";
  const replay::Wrapped& w = found->wrapped;
  finding.text += "; these are integers that wrapped around: " + name + w.dtype + at_line(s.trace, op) + " leaves " +
                  figure(w.low) + " to " + figure(w.high) + " in " + counted(w.values, "value");
  Experiment experiment{name + w.dtype + " in float64", figure(w.smallest) + " to " + figure(w.largest), true};
  finding.experiments.push_back(std::move(experiment));
  finding.fix_text = "compute these integers in a wider type, with .long() or .float() before that operation";
  mend_at(s.trace, op, &finding);
  finding.edits.clear();  // a value in the place of one that should be another
  finding.beside.reset();
  if (finding.cause_class == "unknown") finding.confidence = "likely";
}

}  // namespace finitude::explain
