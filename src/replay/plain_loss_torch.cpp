// Losses by log, exp, products and sums.
#include <map>

#include "replay/plain_call_torch.h"

namespace finitude::replay {
namespace {

// 0: each for itself, 1: mean, 2: sum.
Tensors reduced(const PlainCall& call, at::Tensor each, const at::Tensor& weight = {}) {
  if (weight.defined()) each = each * weight;
  const std::int64_t how = call.integer("reduction");
  return {how == 0 ? each : how == 1 ? each.sum() / static_cast<double>(each.numel()) : each.sum()};
}

at::Tensor difference(const PlainCall& call) { return call.tensor("self") - call.tensor("target"); }

Tensors mse(const PlainCall& call) {
  const at::Tensor d = difference(call);
  return reduced(call, d * d);
}

Tensors smooth_l1(const PlainCall& call) {
  const double beta = call.real("beta");
  const at::Tensor d = difference(call).abs();
  return reduced(call, at::where(d < beta, d * d * 0.5 / beta, d - 0.5 * beta));
}

Tensors huber(const PlainCall& call) {
  const double delta = call.real("delta");
  const at::Tensor d = difference(call).abs();
  return reduced(call, at::where(d < delta, d * d * 0.5, (d - 0.5 * delta) * delta));
}

// The kernel stops logarithms at -100; so does this.
Tensors bce(const PlainCall& call) {
  const at::Tensor p = call.tensor("self"), t = call.tensor("target");
  const at::Tensor log_p = at::clamp_min(p.log(), -100), log_q = at::clamp_min((1 - p).log(), -100);
  return reduced(call, (t - 1) * log_q - t * log_p, call.tensor("weight"));
}

Tensors bce_with_logits(const PlainCall& call) {
  const at::Tensor x = call.tensor("self"), t = call.tensor("target"), positive = call.tensor("pos_weight");
  const at::Tensor soft = (x.abs().neg().exp() + 1).log() + at::clamp_min(x.neg(), 0);  // log(1 + exp(-x))
  const at::Tensor factor = positive.defined() ? (positive - 1) * t + 1 : at::ones_like(x);
  return reduced(call, (1 - t) * x + factor * soft, call.tensor("weight"));
}

Tensors soft_margin(const PlainCall& call) {
  return reduced(call, ((call.tensor("self") * call.tensor("target")).neg().exp() + 1).log());
}

// self: log-probabilities, the classes in dimension 1 (or 0, of one sample).
Tensors nll(const PlainCall& call) {
  const at::Tensor x = call.tensor("self"), target = call.tensor("target"), weight = call.tensor("weight");
  const std::int64_t dim = x.dim() == 1 ? 0 : 1, ignored = call.integer("ignore_index");
  const at::Tensor counts = target.ne(ignored), index = target.masked_fill(counts.logical_not(), 0);
  at::Tensor w = counts.to(x.scalar_type());
  if (weight.defined()) w = w * weight.index_select(0, index.reshape({-1})).reshape(index.sizes());
  const at::Tensor each = at::where(counts, x.gather(dim, index.unsqueeze(dim)).squeeze(dim).neg() * w, 0.0);
  const std::int64_t how = call.integer("reduction");
  return {how == 0 ? each : how == 1 ? each.sum() / w.sum() : each.sum()};
}

}  // namespace

PlainForm plain_loss(std::string_view op) {
  static const std::map<std::string_view, PlainForm> known{
      {"aten::mse_loss", mse},
      {"aten::smooth_l1_loss", smooth_l1},
      {"aten::huber_loss", huber},
      {"aten::binary_cross_entropy", bce},
      {"aten::binary_cross_entropy_with_logits", bce_with_logits},
      {"aten::soft_margin_loss", soft_margin},
      {"aten::nll_loss_forward", nll},
      {"aten::nll_loss2d_forward", nll},
  };
  const auto found = known.find(op);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace finitude::replay
