// The backward nodes that an operator has just made, found in what it gave and wrote.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace finitude::observe {

// Names a node: nodes are numbered by the thread that made them, which is what an event of the engine reports one.
inline std::uint64_t node_key(std::uint64_t thread, std::uint64_t sequence) { return (thread << 48) ^ sequence; }

// Adds the node of a result. Of one that was written in place and is a view, also the node that its base got by that,
// CopySlices, and the operator's own, which hides in it: the view's is made only when somebody asks for it. No operator
// is called.
void add_made_nodes(const at::Tensor& result, bool written, std::vector<std::uint64_t>* keys);

}  // namespace finitude::observe
