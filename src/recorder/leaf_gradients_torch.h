// Gradients that a second run of a step would accumulate into once more, set aside for as long as it runs: those of the
// optimizer that is explained, of all others that the recorder knows, and of whatever else lies below a loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <utility>
#include <vector>

namespace finitude::recorder {

class LeafGradients {
 public:
  // Backward is to find a gradient of zeros at this leaf (was_there), or none, until put_back(). Of a leaf that is
  // known already nothing changes.
  void set_aside(const at::Tensor& leaf, bool was_there);
  // The same for every leaf that a backward from this loss accumulates into, and that is not known. Of those it is not
  // reported what they held as the step began: a gradient that is there now was there then.
  void set_aside_below(const at::Tensor& loss);
  // Each leaf has the tensor again that it had, which nothing has written meanwhile.
  void put_back();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;  // leaf, its gradient
  std::unordered_set<const c10::TensorImpl*> known_;
};

}  // namespace finitude::recorder
