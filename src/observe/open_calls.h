// What one thread is inside of while it is traced: operators, autograd nodes and code of others, by their ids.
#pragma once

#include <cstdint>
#include <vector>

#include "observe/nested_writes.h"
#include "record/trace.h"

namespace finitude::observe {

// Stacks, the innermost call last. For one thread; they allocate only where it is nested deeper than ever before.
struct OpenCalls {
  std::vector<record::OpId> ops;
  NestedWrites writes;  // of ops
  std::vector<record::OpId> nodes;
  std::vector<std::uint32_t> called_from;  // of nodes: the line whose backward it is
  // That may run code of others: custom Functions and their nodes, operators of libraries.
  std::vector<record::OpId> functions;
  std::vector<record::OpId> kernels;  // that may write memory between the operators that they call
  std::uint64_t generation = 0;       // the trace whose ids these are

  // To be called before anything is asked or pushed: what was open in an earlier trace is forgotten.
  void enter(std::uint64_t now) {
    if (generation == now) return;
    ops.clear();
    writes.clear();
    nodes.clear();
    called_from.clear();
    functions.clear();
    kernels.clear();
    generation = now;
  }

  // Is what begins now called by code that is no operator, so that it has a line of its own?
  bool is_top() const { return ops.empty() || is_innermost(nodes) || is_innermost(functions); }

  record::OpId op() const { return ops.empty() ? record::kNone : ops.back(); }
  record::OpId node() const { return nodes.empty() ? record::kNone : nodes.back(); }

  // Ends all that began after `id`, which is innermost then, and takes `id` off all stacks but that of the writes.
  void leave(record::OpId id) {
    while (!ops.empty() && ops.back() >= id) ops.pop_back();
    while (!nodes.empty() && nodes.back() >= id) {
      nodes.pop_back();
      called_from.pop_back();
    }
    while (!functions.empty() && functions.back() >= id) functions.pop_back();
    while (!kernels.empty() && kernels.back() >= id) kernels.pop_back();
    writes.end(ops.size() + 1);
  }

 private:
  bool is_innermost(const std::vector<record::OpId>& some) const { return !some.empty() && ops.back() == some.back(); }
};

}  // namespace finitude::observe
