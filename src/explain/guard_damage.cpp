#include "explain/guard_damage.h"

#include <cstdlib>
#include <string>

#include "explain/changed_memory.h"
#include "explain/evidence.h"

namespace finitude::explain {
namespace {

using record::GuardDamage;
using record::kNone;
using record::OpId;

// "the result of aten::layer_norm at train.py:9 (2,048 bytes)".
std::string damaged_owner(const record::Trace& trace, const GuardDamage& damage) {
  const std::string size = " (" + with_commas(damage.size_bytes) + " bytes)";
  for (const record::Storage& storage : trace.storages)
    if (storage.address == damage.address && !storage.name.empty()) return storage.name + size;
  if (damage.made_in >= trace.ops.size()) return "a tensor from before the step" + size;
  return "the result of " + call_words(trace, outermost(trace, damage.made_in)) + size;
}

// The last call of the program's that ended before `id` began.
OpId call_before(const record::Trace& trace, OpId id) {
  while (id-- > 0) {
    const record::Op& op = trace.ops[id];
    if (op.parent == kNone && !op.is_node && op.stack != kNone) return id;
  }
  return kNone;
}

std::string moment_words(const record::Trace& trace, const GuardDamage& damage) {
  if (damage.seen_at >= trace.ops.size()) return "outside of the operators of the step";
  const OpId seen = outermost(trace, damage.seen_at);
  if (damage.seen_at_end) return "while " + call_words(trace, seen) + " ran";
  const OpId before = call_before(trace, seen);
  if (before == kNone) return "before " + call_words(trace, seen) + ", the first of the step";
  return "after " + call_words(trace, before) + " and before " + call_words(trace, seen) +
         ", by code that is no operator";
}

std::string bytes_words(const GuardDamage& damage) {
  const auto count = static_cast<std::uint64_t>(damage.end - damage.first);
  const std::string bytes = with_commas(count) + (count == 1 ? " byte was written" : " bytes were written");
  switch (damage.where) {
    case GuardDamage::kBefore:
      return bytes + " up to " + with_commas(static_cast<std::uint64_t>(-damage.first)) + " bytes before the start of ";
    case GuardDamage::kAfter:
      return bytes + " from byte " + with_commas(static_cast<std::uint64_t>(damage.first) - damage.size_bytes) +
             " behind the end of ";
    case GuardDamage::kFreed:
      break;
  }
  return bytes + ", from byte " + with_commas(static_cast<std::uint64_t>(damage.first)) +
         ", into memory that had been given back: ";
}

}  // namespace

std::optional<Finding> finding_of_damage(const std::vector<GuardDamage>& damages, const record::Trace& trace) {
  if (damages.empty()) return std::nullopt;
  const GuardDamage& damage = damages.front();
  const bool is_freed = damage.where == GuardDamage::kFreed;
  Finding finding;
  finding.cause_class = "memory-corruption";
  finding.confidence = "likely";
  finding.text = bytes_words(damage) + damaged_owner(trace, damage) + ", " + moment_words(trace, damage);
  if (is_freed && damage.freed_in < trace.ops.size())
    finding.text += "; it was given back in " + call_words(trace, outermost(trace, damage.freed_in));
  finding.fix_text = is_freed ? "keep the tensor for as long as its data_ptr() is used"
                              : "check the sizes that this code is given, and that the tensor is contiguous";
  if (damage.seen_at < trace.ops.size()) {
    finding.born_in = outermost(trace, damage.seen_at);
    mend_at(trace, trace.ops[finding.born_in], &finding);
  }
  finding.experiments.push_back({"the program started again, with guard zones around the memory of tensors",
                                 counted(damages.size(), "block") + " damaged", true});
  return finding;
}

}  // namespace finitude::explain
