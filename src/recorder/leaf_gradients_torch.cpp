#include "recorder/leaf_gradients_torch.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "recorder/watched_torch.h"

namespace finitude::recorder {

void LeafGradients::set_aside(const at::Tensor& leaf, bool was_there) {
  if (!leaf.defined() || !known_.insert(leaf.unsafeGetTensorImpl()).second) return;
  const at::NoGradGuard no_grad;
  const at::Tensor* const now = gradient_of(leaf);
  const at::Tensor gradient = now != nullptr ? *now : at::Tensor();
  kept_.emplace_back(leaf, gradient);
  leaf.mutable_grad() = was_there && gradient.defined() ? at::zeros_like(gradient) : at::Tensor();
}

void LeafGradients::set_aside_below(const at::Tensor& loss) {
  if (!loss.defined() || !loss.grad_fn()) return;
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen{loss.grad_fn().get()};
  std::vector<Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) set_aside(leaf->variable, true);
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
}

void LeafGradients::put_back() {
  for (const auto& [leaf, gradient] : kept_) leaf.mutable_grad() = gradient;
  kept_.clear();
  known_.clear();
}

}  // namespace finitude::recorder
