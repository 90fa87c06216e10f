#include "recorder/search_torch.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

namespace finitude::recorder {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; }

// A copy of LBFGS's state shares its tensors; some of them are written in place by later steps.
std::unique_ptr<torch::optim::OptimizerParamState> copy_of(const torch::optim::OptimizerParamState& state) {
  const auto& known = static_cast<const torch::optim::LBFGSParamState&>(state);
  auto copy = std::make_unique<torch::optim::LBFGSParamState>(known);
  copy->d(copy_of(known.d()));
  copy->H_diag(copy_of(known.H_diag()));
  copy->prev_flat_grad(copy_of(known.prev_flat_grad()));
  for (auto* list : {&copy->old_dirs(), &copy->old_stps(), &copy->ro()}) {
    for (at::Tensor& tensor : *list) tensor = copy_of(tensor);
  }
  if (copy->al()) {
    for (at::Tensor& tensor : *copy->al()) tensor = copy_of(tensor);
  }
  return copy;
}

}  // namespace

bool searches(const torch::optim::Optimizer& optimizer) noexcept {
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
}

SearchState::SearchState(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  const at::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) parameters_.emplace_back(p, copy_of(p));
  }
  for (const auto& [key, state] : optimizer.state()) {
    if (state) states_.emplace_back(key, copy_of(*state));
  }
}

void SearchState::put_back() const {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, copy] : parameters_) {
    at::Tensor(parameter).detach().copy_(copy);
  }
  auto& state = optimizer_.state();
  state.clear();
  for (const auto& [key, copy] : states_) state[key] = copy_of(*copy);
}

}  // namespace finitude::recorder
