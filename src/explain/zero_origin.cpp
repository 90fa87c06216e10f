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

}  // namespace

void report_zero_origin(Finding& finding, const Evidence& evidence) {
  const Scene s(evidence);
  if (!s.first || finding.in_optimizer || finding.text.find(": ") != std::string::npos) return;
  const auto point = find_point(*s.first);
  if (!point || point->edge != 0 || !point->operand.tensor || point->operand.zeros() == 0) return;
  if (edge_origin(s.trace, s.culprit, *point->operand.tensor, 0).kind != EdgeKind::kGiven) return;
  finding.text += words(s, *point->operand.tensor);
}

}  // namespace finitude::explain
