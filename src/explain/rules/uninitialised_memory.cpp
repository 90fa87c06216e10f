// Memory from empty, empty_like, resize and the like that is read before anything was written to it.
#include "explain/origin.h"
#include "explain/probe.h"
#include "explain/recomputed.h"
#include "explain/rules/rules.h"

namespace finitude::explain {
namespace {

// The allocating op whose memory the birth carries; null where something else wrote it.
const record::Op* allocation(const Scene& s) {
  if (s.op && s.op->allocates) return s.op;
  const record::OpId reader = s.birth.first_reader != record::kNone ? s.birth.first_reader : s.birth.op;
  if (reader >= s.trace.ops.size()) return nullptr;
  const auto* bad = bad_input(s.trace.ops[reader]);
  if (!bad) return nullptr;
  const BadOrigin origin = bad_origin(s.trace, reader, *bad);
  return origin.op != record::kNone && s.trace.ops[origin.op].allocates ? &s.trace.ops[origin.op] : nullptr;
}

// An operator that was cut off in backward gave nothing: what is bad is the memory that it had been given to write. The
// allocation; null where the birth is none such.
const record::Op* given_to_cut_off(const Scene& s) {
  if (!s.op || !s.op->failed || s.op->is_node || s.op->phase != record::Phase::kBackward) return nullptr;
  for (record::OpId id = s.birth.op + 1;
       id < s.trace.ops.size() && s.trace.ops[id].parent >= s.birth.op && s.trace.ops[id].parent != record::kNone; ++id)
    if (s.trace.ops[id].allocates && cut_off_in(s.trace, id) != record::kNone) return &s.trace.ops[id];
  return nullptr;
}

class UninitialisedMemory : public Rule {
 public:
  const char* name() const override { return "uninitialised-memory"; }

  std::optional<Finding> judge(const Evidence& evidence) const override {
    const Scene s(evidence);
    const record::Op* made = given_to_cut_off(s);
    if (!made) made = allocation(s);
    if (!made) return std::nullopt;
    Finding result = finding(
        s, "uninitialised-memory", kScoreOrigin,
        made->name + " hands out memory with whatever it held before, and it is read before anything is written",
        "initialise it (torch.zeros, nn.init, copy_) before the first read");
    mend_at(s.trace, *made, &result);
    const auto id = static_cast<record::OpId>(made - s.trace.ops.data());
    result.handed_out_by = id;
    if (const record::OpId cut = cut_off_in(s.trace, id); cut != record::kNone) {
      report_cut_off(s.trace, cut, id, &result);
      result.handed_out_by = record::kNone;
    }
    conclude(result, true);
    return result;
  }
};

}  // namespace

std::unique_ptr<Rule> uninitialised_memory() { return std::make_unique<UninitialisedMemory>(); }

}  // namespace finitude::explain
