// What optimizers of torch keep of a parameter, by name: "exp_avg", "momentum_buffer".
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace finitude::recorder {

// Of Adam, AdamW, SGD, RMSprop and Adagrad; of other classes nothing is known.
std::vector<std::pair<std::string, at::Tensor>> state_of(const torch::optim::Optimizer& optimizer,
                                                         const at::Tensor& parameter);

}  // namespace finitude::recorder
