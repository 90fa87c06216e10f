// Memory that changed between two uses that should have seen the same: overwritten while backward still
// needed it, by a race or the reuse of a buffer, or a deterministic op whose result does not come out of its
// own inputs.
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

bool same_span(const record::TensorUse& a, const record::TensorUse& b) {
  return a.storage == b.storage && a.storage != record::kNone && a.begin == b.begin && a.end == b.end;
}

// Not by the forward op itself (exp_ keeps its result), nor as part of the graph.
bool overwritten_after(const Scene& s, record::OpId seen, record::OpId writer) {
  if (writer == record::kNone) return true;
  const record::Op& op = s.trace.ops[writer];
  if (s.forward) return op.end_order > s.forward->end_order;
  return writer > seen && !op.outputs.empty() && !op.outputs.front().requires_grad;
}

// Forward saw this very span finite; the backward op of that forward reads it bad.
struct Changed {
  const record::TensorUse* use = nullptr;
  record::OpId written_by = record::kNone;
  record::OpId seen_by = record::kNone;
};

bool covers(const record::TensorUse& seen, const record::TensorUse& now) {
  return seen.storage == now.storage && seen.storage != record::kNone && seen.dense && seen.begin <= now.begin && now.end <= seen.end;
}

Changed changed_since_forward(const Scene& s) {
  if (!s.backward || !s.op || s.forward_bad()) return {};
  // Without the forward op, autograd's own check of in-place changes covers all but custom Functions.
  if (!s.forward && (!s.node || is_builtin_node(*s.node))) return {};
  for (const auto& now : s.op->inputs) {
    if (now.health.ok()) continue;
    for (record::OpId id = 0; id < s.birth.op; ++id) {
      const record::Op& before = s.trace.ops[id];
      if (before.phase == record::Phase::kBackward || before.allocates || before.is_node) continue;
      if (s.forward && before.end_order > s.forward->end_order) continue;
      for (const auto* uses : {&before.inputs, &before.outputs})
        for (const auto& then : *uses)
          if (same_span(then, now) && then.health.ok() && then.health.numel > 0)
            if (const record::OpId writer = producer(s.trace, s.birth.op, now);
                overwritten_after(s, id, writer))
              return {&now, writer, id};
    }
  }
  return {};
}

// As above, for what no operator wrote: the last of forward that read it, and found it finite.
Changed changed_unseen(const Scene& s) {
  if (s.op || s.birth.kind != "memory" || s.birth.first_reader >= s.trace.ops.size()) return {};
  const record::Op& reader = s.trace.ops[s.birth.first_reader];
  if (reader.phase != record::Phase::kBackward) return {};
  for (const auto& now : reader.inputs) {
    if (now.health.ok() || now.storage != s.birth.storage) continue;
    for (record::OpId id = s.birth.first_reader; id-- > 0;) {
      const record::Op& before = s.trace.ops[id];
      if (before.phase == record::Phase::kBackward || before.allocates || before.is_node || before.is_view) continue;
      for (const auto* uses : {&before.inputs, &before.outputs})
        for (const auto& then : *uses)
          if (covers(then, now) && then.health.ok() && then.health.numel > 0) return {&now, record::kNone, id};
    }
  }
  return {};
}

class MemoryCorruption : public Rule {
 public:
  const char* name() const override { return "memory-corruption"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (const Changed changed = changed_since_forward(s); changed.use) {
      std::string text = "a tensor that backward needs was finite in forward and is not in backward";
      if (changed.written_by != record::kNone)
        text += "; " + s.trace.ops[changed.written_by].name + " overwrote it in between";
      Finding result = finding(
          s, "memory-corruption", kScoreSetting + 60, text,
          "save a copy for backward (save_for_backward, clone), or record the stream that still uses it");
      conclude(result, true);
      return result;
    }
    if (const Changed changed = changed_unseen(s); changed.use) {
      Finding result = finding(
          s, "memory-corruption", kScoreOrigin - 40,
          "a tensor that backward needs was finite when " + s.trace.ops[changed.seen_by].name + at_line(s.trace, s.trace.ops[changed.seen_by]) +
              " read it, and is not in backward; no operator wrote it in between: NumPy, another thread or an extension "
              "did, in memory that the tensor shares",
          "give the tensor memory of its own (torch.tensor or clone instead of from_numpy), or write there only after backward");
      conclude(result, true);
      return result;
    }
    if (s.birth.kind == "memory" && s.birth.first_reader < s.trace.ops.size()) {
      Finding result = finding(s, "memory-corruption", kScoreOrigin - 50,
                               "memory holds a non-finite value that no traced op wrote",
                               "look for a write from another stream, thread or extension");
      conclude(result, false);
      return result;
    }
    if (!s.op || s.op->random || s.op->allocates || !inputs_finite(*s.op)) return std::nullopt;
    Probe probe(s, s.birth.op);
    Variant again;
    again.again = true;
    if (!probe.finite_if("again as it was", again)) return std::nullopt;
    Finding result = finding(s, "memory-corruption", kScoreSetting + 60,
                             s.op->name + " does not make this value when it is run again on the same inputs",
                             "look for a race, a reused buffer or failing hardware");
    probe.conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> memory_corruption() { return std::make_unique<MemoryCorruption>(); }

}  // namespace finitude::explain
