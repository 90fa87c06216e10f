#include "standby/computed_dtype_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>
#include <vector>

#include "base/immortal.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMostNodes = 20'000;

// Addresses, which are compared only.
struct Casts {
  std::unordered_set<const c10::TensorImpl*> in_half, next;  // of the last step that was looked at; of this one
  std::unordered_set<const torch::autograd::Node*> seen;     // of one walk
  std::vector<const torch::autograd::Node*> todo;
  std::uint64_t number = 0;
};
base::Immortal<Casts> the_casts;

// Is the gradient that this node is given float16?
bool takes_half(const torch::autograd::Node& node) {
  return node.num_inputs() > 0 && node.input_metadata(0).dtype().toScalarType() == at::ScalarType::Half;
}

}  // namespace

void begin_casts() noexcept { (*the_casts).next.clear(); }

void end_casts() noexcept {
  Casts& c = *the_casts;
  if (c.in_half == c.next) return;
  c.in_half.swap(c.next);
  ++c.number;
}

void look_at_casts(const at::Tensor& root) {
  Casts& c = *the_casts;
  if (!root.defined() || !root.grad_fn()) return;
  c.seen.clear();
  c.todo.assign(1, root.grad_fn().get());
  while (!c.todo.empty() && c.seen.size() < kMostNodes) {
    const torch::autograd::Node* const node = c.todo.back();
    c.todo.pop_back();
    if (!c.seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) {
      const torch::autograd::Node* const next = edge.function.get();
      if (next == nullptr) continue;
      const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(next);
      if (leaf == nullptr)
        c.todo.push_back(next);
      else if (takes_half(*node))
        c.next.insert(leaf->variable.unsafeGetTensorImpl());
    }
  }
}

bool is_computed_in_half(const c10::TensorImpl& parameter) noexcept {
  return (*the_casts).in_half.contains(&parameter);
}

std::uint64_t casts_seen() noexcept { return (*the_casts).number; }

}  // namespace finitude::bindings
