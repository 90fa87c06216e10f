#include "observe/made_nodes_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace finitude::observe {
namespace {

void add(const torch::autograd::Node& node, std::vector<std::uint64_t>* keys) {
  keys->push_back(node_key(node.thread_id(), node.sequence_nr()));
}

const torch::autograd::Node* node_of(const at::TensorBase& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr ? meta->grad_fn_.get() : nullptr;
}

}  // namespace

void add_made_nodes(const at::Tensor& result, bool written, std::vector<std::uint64_t>* keys) {
  if (const auto* node = node_of(result)) add(*node, keys);
  const auto* view = written ? torch::autograd::impl::get_view_autograd_meta(result) : nullptr;
  if (view == nullptr || !view->has_bw_view()) return;
  const auto* slices = dynamic_cast<const torch::autograd::CopySlices*>(node_of(view->get_backward_view().base_));
  if (slices == nullptr) return;
  add(*slices, keys);
  if (slices->fn) add(*slices->fn, keys);
}

}  // namespace finitude::observe
