#include "locate/script_nodes.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::kNone;
using record::Op;
using record::OpId;
using record::Phase;
using record::TensorUse;

constexpr std::size_t kMostParts = 32;

// "log_softmax" -> "LogSoftmaxBackward0"
std::string node_name(std::string_view op) {
  std::string name;
  bool begins = true;
  for (const char c : op) {
    if (c == '_') {
      begins = true;
      continue;
    }
    name += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins = false;
  }
  return name + "Backward0";
}

bool shares(const TensorUse& use, const std::vector<const TensorUse*>& known) {
  return use.storage != kNone &&
         std::ranges::any_of(known, [&](const TensorUse* other) { return other->storage == use.storage; });
}

class Splitter {
 public:
  explicit Splitter(record::Trace* trace) : trace_(*trace) {
    for (const Op& op : trace_.ops) node_of_.push_back(op.node);
  }

  void run() {
    const auto count = static_cast<OpId>(trace_.ops.size());
    for (OpId id = 0; id < count; ++id) {
      const Op& op = trace_.ops[id];
      if (op.is_node || op.node >= count || op.stack >= trace_.stacks.size() || trace_.ops[op.node].forward != kNone)
        continue;
      const std::string derivative = trace_.stacks[op.stack].statement_context;
      if (derivative.empty()) continue;
      const OpId forward = forward_of(id, derivative);
      if (forward == kNone) continue;
      Op node;
      node.name = node_name(derivative);
      node.is_node = true;
      node.phase = Phase::kBackward;
      node.forward = forward;
      node.micro_batch = op.micro_batch;
      trace_.ops[id].node = static_cast<OpId>(trace_.ops.size());
      trace_.ops[id].stack = kNone;
      trace_.ops.push_back(std::move(node));
    }
  }

 private:
  // The last call of that operator that read or made what this derivative reads.
  OpId forward_of(OpId id, std::string_view derivative) const {
    std::vector<OpId> parts = {id};
    std::vector<const TensorUse*> read;
    for (std::size_t i = 0; i < parts.size() && i < kMostParts; ++i) {
      for (const TensorUse& use : trace_.ops[parts[i]].inputs) {
        if (use.storage == kNone) continue;
        read.push_back(&use);
        for (OpId made = parts[i]; made-- > 0 && trace_.ops[made].phase == Phase::kBackward;) {
          if (node_of_[made] != node_of_[id] || trace_.ops[made].is_node) continue;
          const auto wrote = [&](const TensorUse& out) { return out.storage == use.storage; };
          if (std::ranges::any_of(trace_.ops[made].outputs, wrote)) {
            parts.push_back(made);
            break;
          }
        }
      }
    }
    for (OpId call = id; call-- > 0;) {
      const Op& op = trace_.ops[call];
      if (op.phase == Phase::kBackward || op.is_node || base_name(op.name) != derivative || op.stack == kNone) continue;
      const auto known = [&](const TensorUse& use) { return shares(use, read); };
      if (std::ranges::any_of(op.outputs, known) || std::ranges::any_of(op.inputs, known)) return call;
    }
    return kNone;
  }

  record::Trace& trace_;
  std::vector<OpId> node_of_;  // as they were
};

}  // namespace

void split_script_nodes(record::Trace* trace) {
  if (std::ranges::any_of(trace->stacks, [](const record::Stack& stack) { return !stack.statement_context.empty(); }))
    Splitter(trace).run();
}

}  // namespace finitude::locate
