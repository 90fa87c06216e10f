#include "recorder/optimizer_state_torch.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace finitude::recorder {

using namespace torch::optim;

std::vector<std::pair<std::string, at::Tensor>> state_of(const Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || !found->second) return {};
  const OptimizerParamState* const state = found->second.get();
  if (const auto* s = dynamic_cast<const AdamParamState*>(state))
    return {{"exp_avg", s->exp_avg()}, {"exp_avg_sq", s->exp_avg_sq()}, {"max_exp_avg_sq", s->max_exp_avg_sq()}};
  if (const auto* s = dynamic_cast<const AdamWParamState*>(state))
    return {{"exp_avg", s->exp_avg()}, {"exp_avg_sq", s->exp_avg_sq()}, {"max_exp_avg_sq", s->max_exp_avg_sq()}};
  if (const auto* s = dynamic_cast<const SGDParamState*>(state)) return {{"momentum_buffer", s->momentum_buffer()}};
  if (const auto* s = dynamic_cast<const RMSpropParamState*>(state))
    return {{"square_avg", s->square_avg()}, {"momentum_buffer", s->momentum_buffer()}, {"grad_avg", s->grad_avg()}};
  if (const auto* s = dynamic_cast<const AdagradParamState*>(state)) return {{"sum", s->sum()}};
  return {};
}

}  // namespace finitude::recorder
