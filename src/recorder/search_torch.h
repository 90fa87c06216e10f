// An optimizer that searches along a line calls its closure itself (LBFGS). To skip such a step, what it has
// written is put back.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

namespace finitude::recorder {

bool searches(const torch::optim::Optimizer& optimizer) noexcept;

// Parameters and state of an optimizer for which searches() holds, copied.
class SearchState {
 public:
  explicit SearchState(torch::optim::Optimizer& optimizer);
  // Bit for bit as it was copied. The copy stays.
  void put_back() const;

 private:
  using State = std::unique_ptr<torch::optim::OptimizerParamState>;
  torch::optim::Optimizer& optimizer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> parameters_;  // the parameter and its copy
  std::vector<std::pair<void*, State>> states_;
};

}  // namespace finitude::recorder
