#include "explain/zero_origin.h"

#include <string>
#include <vector>

#include "explain/origin.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

bool cuts_off(const record::Op& op) {
  return one_of(plain_name(op.name), {"relu", "threshold", "clamp", "clamp_min", "clip", "hardtanh", "relu6"});
}

// What the program wrote of which the op is a part: relu of clamp_min.
const record::Op& written_call(const record::Trace& trace, record::OpId id) {
  for (int depth = 0; depth < 8; ++depth) {
    const record::OpId around = trace.ops[id].parent;
    if (around >= trace.ops.size() || trace.ops[around].is_node) break;
    id = around;
  }
  return trace.ops[id];
}

std::string name_of(const record::Trace& trace, const record::TensorUse& use) {
  return use.storage < trace.storages.size() ? trace.storages[use.storage].name : std::string();
}

// A tensor by itself, "weight" or "batch[0]", of which the zeros are.
std::string held_by(const record::Trace& trace, const record::TensorUse& use) {
  const std::string name = name_of(trace, use);
  if (name.empty()) return {};
  if (use.health.zero == use.health.numel) return "; " + name + " holds nothing but zeros";
  return "; the zero is in " + name + ", which has " + counted(use.health.zero, "zero") + " among " +
         counted(use.health.numel, "value");
}

std::string words(const Scene& s, const record::TensorUse& operand) {
  const std::vector<ZeroLink> way = way_of_zeros(s.trace, s.culprit, operand);
  if (way.empty()) return held_by(s.trace, operand);
  for (const ZeroLink& link : way) {
    const record::Op& op = s.trace.ops[link.op];
    if (!link.from) {
      if (!cuts_off(op) || op.inputs.empty() || !(op.inputs.front().health.min < 0)) return {};
      const std::string name = name_of(s.trace, op.inputs.front());
      const record::Op& call = written_call(s.trace, link.op);
      return "; " + call.name + at_line(s.trace, call) + " makes it of a negative number" +
             (name.empty() ? "" : " in " + name);
    }
    // Of a sum or a product each element is made of many.
    if (!is_carrier(op) && !looks_up(op) && !one_of(plain_name(op.name), {"sqrt", "abs", "neg", "pow", "square"}))
      return {};
    if (!looks_up(op)) continue;
    const std::string name = name_of(s.trace, *link.from);
    return "; the zero is read from " + (name.empty() ? "a table" : name) + at_line(s.trace, op) + ", which has " +
           counted(link.from->health.zero, "zero") + " among " + counted(link.from->health.numel, "value");
  }
  return held_by(s.trace, *way.back().from);
}

bool is_part_of(const record::Trace& trace, record::OpId id, record::OpId of) {
  for (int depth = 0; id < trace.ops.size() && depth < 16; ++depth, id = trace.ops[id].parent)
    if (id == of) return true;
  return false;
}

}  // namespace

std::optional<InfiniteDivisor> infinite_divisor(const Evidence& evidence) {
  const Scene s(evidence);
  const auto point = s.first ? find_point(*s.first) : std::nullopt;
  if (!point || point->edge != 0 || !point->operand.tensor) return std::nullopt;
  const std::vector<ZeroLink> way = way_of_zeros(s.trace, s.culprit, *point->operand.tensor);
  if (way.empty() || way.back().from) return std::nullopt;
  const record::OpId made = way.back().op;
  const record::Op& division = s.trace.ops[made];
  const bool inverse = plain_name(division.name) == "reciprocal";
  if (!inverse && !one_of(plain_name(division.name), {"div", "true_divide"})) return std::nullopt;
  const Operand divisor = operand(division, inverse ? "self" : "other", inverse ? 0 : 1);
  if (!divisor.tensor || !divisor.has_inf()) return std::nullopt;
  const BadOrigin origin = bad_origin(s.trace, made, *divisor.tensor);
  const auto& births = evidence.located.births;
  for (std::size_t i = 0; i < births.size(); ++i) {
    if (origin.op == record::kNone || i == evidence.birth || births[i].op >= made) continue;
    if (!is_part_of(s.trace, origin.op, births[i].op) && !is_part_of(s.trace, births[i].op, origin.op)) continue;
    return InfiniteDivisor{i, "; " + division.name + at_line(s.trace, division) + " divides by it, and " +
                                  s.first->name + at_line(s.trace, *s.first) + " has no value at the zeros of that"};
  }
  return std::nullopt;
}

void report_zero_origin(Finding& finding, const Evidence& evidence) {
  const Scene s(evidence);
  if (!s.first || finding.in_optimizer || finding.text.find(": ") != std::string::npos) return;
  const auto point = find_point(*s.first);
  if (!point || point->edge != 0 || !point->operand.tensor || point->operand.zeros() == 0) return;
  if (edge_origin(s.trace, s.culprit, *point->operand.tensor, 0).kind != EdgeKind::kGiven) return;
  finding.text += words(s, *point->operand.tensor);
}

}  // namespace finitude::explain
