// Fused attention by products, exp and sums. Rows that may look at nothing give zeros, as the kernels have it.
#include <algorithm>
#include <cmath>
#include <map>

#include "replay/tape_elsewhere_torch.h"

namespace finitude::replay {
namespace {

using Results = torch::jit::Stack;

struct Attention {
  at::Tensor q, k, v, bias;  // [batch, heads, rows, width]; each query head with a key head of its own
  std::int64_t groups = 1;   // query heads that share one key head
  double scale = 1;
  bool causal = false;

  at::Tensor scores() const {
    check_size(q.numel() / std::max<std::int64_t>(q.size(-1), 1) * k.size(-2));
    at::Tensor s = q.matmul(k.transpose(-2, -1)) * scale;
    if (bias.defined()) s = bias.scalar_type() == at::kBool ? s.masked_fill(bias.logical_not(), -INFINITY) : s + bias;
    if (!causal) return s;
    const at::Tensor allowed = at::ones({s.size(-2), s.size(-1)}, s.options().dtype(at::kBool)).tril();
    return s.masked_fill(allowed.logical_not(), -INFINITY);
  }
};

Attention attention_of(const PlainCall& call, const char* bias, bool square) {
  Attention a;
  a.q = call.tensor("query");
  a.k = call.tensor("key");
  a.v = call.tensor("value");
  TORCH_CHECK(a.q.dim() == 4 && a.k.dim() == 4 && a.v.dim() == 4, "attention of another form");
  TORCH_CHECK(call.real("dropout_p") == 0, "attention with a dropout whose mask no other device can make");
  TORCH_CHECK(a.k.size(1) > 0 && a.q.size(1) % a.k.size(1) == 0, "attention over groups that do not fit");
  a.groups = a.q.size(1) / a.k.size(1);
  if (a.groups > 1) {
    a.k = a.k.repeat_interleave(a.groups, 1);
    a.v = a.v.repeat_interleave(a.groups, 1);
  }
  if (bias != nullptr) a.bias = call.tensor(bias);
  a.scale = call.real("scale", 1 / std::sqrt(static_cast<double>(a.q.size(-1))));
  a.causal = call.flag("is_causal");
  // With other counts of rows and columns kernels disagree about which of them meet.
  TORCH_CHECK(!a.causal || !square || a.q.size(2) == a.k.size(2), "causal attention that is not square");
  return a;
}

struct Forward {
  at::Tensor out, sums;  // sums: the logarithm of the sum of the exponentials of each row
};

Forward forward(const Attention& a) {
  const at::Tensor s = a.scores(), largest = s.amax({-1}, true);
  const at::Tensor most = at::where(at::isinf(largest), at::zeros_like(largest), largest);
  const at::Tensor e = (s - most).exp(), sum = e.sum({-1}, true);
  const at::Tensor nothing = sum.eq(0);
  const at::Tensor p = (e / sum).masked_fill(nothing, 0);
  return {p.matmul(a.v), (sum.log() + most).masked_fill(nothing, INFINITY).squeeze(-1)};
}

at::Tensor of_groups(const at::Tensor& grad, std::int64_t groups) {
  return groups == 1 ? grad : grad.unflatten(1, {grad.size(1) / groups, groups}).sum({2});
}

struct Gradients {
  at::Tensor q, k, v, bias;
};

// out and sums are those that the forward call gave, as the kernels take them. sums may be padded, or have a last
// dimension of 1.
Gradients backward(const Attention& a, const at::Tensor& grad, const at::Tensor& out, const at::Tensor& sums) {
  const std::int64_t rows = a.q.size(2);
  TORCH_CHECK(sums.dim() >= 3 && sums.numel() >= a.q.size(0) * a.q.size(1) * rows,
              "attention whose sums are not there");
  const at::Tensor each = sums.reshape({a.q.size(0), a.q.size(1), -1}).narrow(2, 0, rows).unsqueeze(-1);
  const at::Tensor p = (a.scores() - each).exp();
  const at::Tensor of_s = p * (grad.matmul(a.v.transpose(-2, -1)) - (grad * out).sum({-1}, true));
  return {of_s.matmul(a.k) * a.scale, of_groups(of_s.transpose(-2, -1).matmul(a.q) * a.scale, a.groups),
          of_groups(p.transpose(-2, -1).matmul(grad), a.groups), of_s};
}

// What only the kernels of that device read: seeds, offsets, lengths.
at::Tensor unused(const PlainCall& call) {
  return at::zeros({}, call.value("query").toTensor().options().dtype(at::kLong));
}

Results flash(const PlainCall& call) {
  const Attention a = attention_of(call, nullptr, true);
  auto [out, sums] = forward(a);
  return {out, sums, at::Tensor(), at::Tensor(), a.q.size(2), a.k.size(2), unused(call), unused(call), at::Tensor()};
}

Results cudnn(const PlainCall& call) {
  const Attention a = attention_of(call, "attn_bias", true);
  auto [out, sums] = forward(a);
  return {out, sums, at::Tensor(), at::Tensor(), a.q.size(2), a.k.size(2), unused(call), unused(call), at::Tensor()};
}

Results efficient(const PlainCall& call) {
  auto [out, sums] = forward(attention_of(call, "attn_bias", false));
  return {out, sums, unused(call), unused(call)};
}

Results flash_backward(const PlainCall& call) {
  const Gradients g = backward(attention_of(call, nullptr, true), call.tensor("grad_out"), call.tensor("out"),
                               call.tensor("logsumexp"));
  return {g.q, g.k, g.v};
}

Results cudnn_backward(const PlainCall& call) {
  const Gradients g = backward(attention_of(call, "attn_bias", true), call.tensor("grad_out"), call.tensor("out"),
                               call.tensor("logsumexp"));
  return {g.q, g.k, g.v};
}

Results efficient_backward(const PlainCall& call) {
  const Attention a = attention_of(call, "attn_bias", false);
  const Gradients g = backward(a, call.tensor("grad_out_"), call.tensor("out"), call.tensor("logsumexp"));
  const auto wanted = call.value("grad_input_mask").toBoolList();
  const bool of_bias = a.bias.defined() && wanted.size() == 4 && wanted[3];
  return {g.q, g.k, g.v, of_bias ? g.bias.sum_to_size(a.bias.sizes()) : at::Tensor()};
}

}  // namespace

DeviceForm attention_form(std::string_view op) {
  static const std::map<std::string_view, DeviceForm> known{
      {"aten::_scaled_dot_product_flash_attention", flash},
      {"aten::_scaled_dot_product_flash_attention_backward", flash_backward},
      {"aten::_scaled_dot_product_cudnn_attention", cudnn},
      {"aten::_scaled_dot_product_cudnn_attention_backward", cudnn_backward},
      {"aten::_scaled_dot_product_efficient_attention", efficient},
      {"aten::_scaled_dot_product_efficient_attention_backward", efficient_backward},
  };
  const auto found = known.find(op);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace finitude::replay
