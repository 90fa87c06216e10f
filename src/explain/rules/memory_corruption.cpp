// Memory that changed between two uses that should have seen the same: overwritten while backward still
// needed it, by a race or the reuse of a buffer, or a deterministic op whose result does not come out of its
// own inputs.
#include <algorithm>
#include <string_view>
#include <vector>

#include "explain/changed_memory.h"
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/rules/rules.h"
#include "record/unseen_write.h"

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
  return seen.storage == now.storage && seen.storage != record::kNone && seen.dense && seen.begin <= now.begin &&
         now.end <= seen.end;
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
            if (const record::OpId writer = producer(s.trace, s.birth.op, now); overwritten_after(s, id, writer))
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

// A write that no operator made, on the way to the birth, of values that were not there before: larger by far, or
// zeros.
record::OpId unseen_write_behind(const Scene& s) {
  const auto is_one = [](const record::Op& op) {
    return op.name == record::kUnseenWrite && !op.inputs.empty() && !op.outputs.empty();
  };
  if (!s.op || std::ranges::none_of(s.trace.ops, is_one)) return record::kNone;
  constexpr double kFactor = 8;
  constexpr std::size_t kMostOps = 512;
  const auto matters = [](const record::Op& op) {
    const sense::Health &before = op.inputs.front().health, &after = op.outputs.front().health;
    return after.absmax >= kFactor * before.absmax || after.zero > before.zero;
  };
  std::vector<record::OpId> ops;
  const auto add = [&](record::OpId id) {
    if (id < s.trace.ops.size() && std::ranges::find(ops, id) == ops.end()) ops.push_back(id);
  };
  for (const record::OpId id : {s.birth.op, s.birth.forward, s.culprit}) add(id);
  for (std::size_t i = 0; i < ops.size() && i < kMostOps; ++i) {
    for (const record::TensorUse& use : s.trace.ops[ops[i]].inputs) {
      if (use.dtype == sense::DType::kOther || use.storage == record::kNone) continue;
      const record::OpId made = producer(s.trace, ops[i], use);
      if (made != record::kNone && is_one(s.trace.ops[made]) && matters(s.trace.ops[made])) return made;
      add(made);
    }
  }
  return record::kNone;
}

bool has_number(const record::Op& op, std::string_view name) {
  return std::ranges::any_of(op.scalars, [&](const auto& scalar) { return scalar.arg == name && scalar.number; });
}

void add_lines(std::vector<Experiment> lines, Finding* finding) {
  for (Experiment& line : lines) finding->experiments.push_back(std::move(line));
}

// Did forward save it, and an autograd node read it again?
bool is_read_by_node(const Scene& s, const record::Op& reader) {
  return reader.node < s.trace.ops.size() && is_builtin_node(s.trace.ops[reader.node]);
}

std::string reader_line(const Scene& s, const record::Op& reader) {
  if (!is_read_by_node(s, reader)) return at_line(s.trace, reader);
  const record::OpId forward = s.trace.ops[reader.node].forward;
  if (forward >= s.trace.ops.size()) return " in backward";
  return " in the backward of " + s.trace.ops[forward].name + at_line(s.trace, s.trace.ops[forward]);
}

Finding of_unseen_write(const Scene& s, record::OpId id) {
  const record::Op& change = s.trace.ops[id];
  const record::TensorUse &before = change.inputs.front(), &after = change.outputs.front();
  const record::OpId writer = producer(s.trace, id, before);
  const record::Op* reader = id + 1 < s.trace.ops.size() ? &s.trace.ops[id + 1] : nullptr;
  for (record::OpId next = id + 1; reader && reader->name == record::kUnseenWrite && next + 1 < s.trace.ops.size();)
    reader = &s.trace.ops[++next];
  std::string text = changed_bytes(change) + ": ";
  text += writer == record::kNone
              ? "the memory was there before the step"
              : s.trace.ops[writer].name + at_line(s.trace, s.trace.ops[writer]) + " wrote this memory";
  if (reader) text += ", " + reader->name + reader_line(s, *reader) + " reads it";
  text += ", and no operator wrote there in between; the largest value was " + figure(before.health.absmax) +
          " and is " + figure(after.health.absmax);
  if (after.health.zero > before.health.zero)
    text += ", and there are " + with_commas(after.health.zero - before.health.zero) + " zeros more";
  text += "; " + s.op->name + " only made a non-finite value of it";
  const std::string fix =
      reader && is_read_by_node(s, *reader)
          ? "write into memory that forward used only after backward, or give the tensor memory of its own "
            "(torch.tensor or clone instead of from_numpy); the writer is no PyTorch operator: NumPy, an extension, "
            "ctypes, another thread or process"
          : "find what writes this memory without a PyTorch operator: an extension, ctypes or a data_ptr() that is "
            "used "
            "too long, another thread, process or stream, or failing memory. Put an intended write into an operator "
            "(torch.library)";
  Finding result = finding(s, "memory-corruption", kScoreOneMeaning + 40, text, fix);
  if (reader) mend_at(s.trace, *reader, &result);
  const bool finite = has_number(change, record::kFiniteWithout);
  if (finite)
    result.experiments.push_back(
        {"whole step played again from its operators, without that write", "it comes out finite", true});
  add_lines(around_change(s.trace, id), &result);
  conclude(result, finite || (has_number(change, record::kChangedBytes) && !has_number(change, record::kAtLeast)));
  return result;
}

bool wrote_all(const record::Op& writer, const record::TensorUse& memory) {
  return std::ranges::any_of(writer.outputs, [&](const record::TensorUse& out) { return covers(out, memory); });
}

// What the first reader found bad in memory.
const record::TensorUse* read_bad(const Scene& s) {
  const record::TensorUse* bad = nullptr;
  for (const auto& use : s.trace.ops[s.birth.first_reader].inputs)
    if (use.storage == s.birth.storage && !use.health.ok()) bad = &use;
  return bad;
}

std::string amount_of(const record::TensorUse& bad) {
  return bad.health.nan ? with_commas(bad.health.nan) + " NaN" : with_commas(bad.health.inf()) + " Inf";
}

// Bad values that the first reader found, and no operator had left there.
std::string of_unknown_writer(const Scene& s) {
  const record::Op& reader = s.trace.ops[s.birth.first_reader];
  const record::TensorUse* bad = read_bad(s);
  if (bad == nullptr) return "memory holds a non-finite value that no operator of the step wrote";
  const std::string text = reader.name + at_line(s.trace, reader) + " reads " + amount_of(*bad);
  const record::OpId writer = producer(s.trace, s.birth.first_reader, *bad);
  if (writer == record::kNone) return text + " in memory that no operator of the step wrote";
  if (!wrote_all(s.trace.ops[writer], *bad))
    return text + " in memory of which " + s.trace.ops[writer].name + at_line(s.trace, s.trace.ops[writer]) +
           " wrote a part last; which writer left them there is not known";
  return text + ", where " + s.trace.ops[writer].name + at_line(s.trace, s.trace.ops[writer]) +
         " had left finite values; no operator wrote there in between";
}

// Integers whose bits are read as floats: written through a view of integers, and some are the pattern of a NaN.
std::optional<Finding> of_written_bits(const Scene& s) {
  const record::TensorUse* bad = read_bad(s);
  const record::OpId writer = bad ? producer(s.trace, s.birth.first_reader, *bad) : record::kNone;
  if (writer == record::kNone || bad->dtype == sense::DType::kOther) return std::nullopt;
  const record::Op &wrote = s.trace.ops[writer], &reader = s.trace.ops[s.birth.first_reader];
  const auto is_integers = [&](const record::TensorUse& out) {
    return out.storage == bad->storage && out.dtype == sense::DType::kOther;
  };
  if (std::ranges::none_of(wrote.outputs, is_integers)) return std::nullopt;
  Finding result =
      finding(s, "bad-data", kScoreOrigin - 50,
              wrote.name + at_line(s.trace, wrote) + " writes integers into memory that " + reader.name +
                  at_line(s.trace, reader) + " reads as " + dtype_name(bad->dtype) + ": as such it holds " +
                  amount_of(*bad) + at_rows(s.birth),
              "write numbers of the format in which they are read; where bits are meant, remove those that "
              "are no number before they are read");
  mend_at(s.trace, wrote, &result);
  conclude(result, true);
  return result;
}

class MemoryCorruption : public Rule {
 public:
  const char* name() const override { return "memory-corruption"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    if (const record::OpId change = unseen_write_behind(s); change != record::kNone) return of_unseen_write(s, change);
    if (const Changed changed = changed_since_forward(s); changed.use) {
      std::string text = "a tensor that backward needs was finite in forward and is not in backward";
      if (changed.written_by != record::kNone)
        text += "; " + s.trace.ops[changed.written_by].name + " overwrote it in between";
      Finding result =
          finding(s, "memory-corruption", kScoreSetting + 60, text,
                  "save a copy for backward (save_for_backward, clone), or record the stream that still uses it");
      conclude(result, true);
      return result;
    }
    if (const Changed changed = changed_unseen(s); changed.use) {
      Finding result = finding(s, "memory-corruption", kScoreOrigin - 40,
                               "a tensor that backward needs was finite when " + s.trace.ops[changed.seen_by].name +
                                   at_line(s.trace, s.trace.ops[changed.seen_by]) +
                                   " read it, and is not in backward; no operator wrote it in between: NumPy, another "
                                   "thread or an extension "
                                   "did, in memory that the tensor shares",
                               "give the tensor memory of its own (torch.tensor or clone instead of from_numpy), or "
                               "write there only after backward");
      add_lines(around_use(s.trace, *changed.use, s.birth.first_reader), &result);
      conclude(result, true);
      return result;
    }
    if (s.birth.kind == "memory" && s.birth.first_reader < s.trace.ops.size()) {
      if (std::optional<Finding> bits = of_written_bits(s)) return bits;
      Finding result = finding(s, "memory-corruption", kScoreOrigin - 50, of_unknown_writer(s),
                               "find what writes this memory besides PyTorch's operators: a NumPy array that shares it "
                               "(numpy(), from_numpy), an extension, ctypes or a data_ptr() that is used too long, "
                               "another thread, process or stream");
      if (const auto* bad = read_bad(s)) add_lines(around_use(s.trace, *bad, s.birth.first_reader), &result);
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
