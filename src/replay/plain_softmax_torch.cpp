// Softmax and attention by exp, sum and division.
#include <algorithm>
#include <cmath>
#include <map>

#include "replay/plain_call_torch.h"

namespace finitude::replay {
namespace {

at::Tensor shifted(const at::Tensor& x, std::int64_t dim) { return x - x.amax({dim}, true); }

at::Tensor softmax_of(const at::Tensor& x, std::int64_t dim) {
  const at::Tensor e = shifted(x, dim).exp();
  return e / e.sum({dim}, true);
}

Tensors softmax(const PlainCall& call) { return {softmax_of(call.tensor("self"), call.integer("dim"))}; }

Tensors log_softmax(const PlainCall& call) {
  const std::int64_t dim = call.integer("dim");
  const at::Tensor x = shifted(call.tensor("self"), dim);
  return {x - x.exp().sum({dim}, true).log()};
}

Tensors logsumexp(const PlainCall& call) {
  const auto dim = call.integers("dim");
  const bool keep = call.flag("keepdim");
  const at::Tensor x = call.tensor("self"), largest = x.amax(dim, true);
  const at::Tensor most = at::where(at::isfinite(largest), largest, 0);  // a row of -Inf alone has no sum to shift
  const at::Tensor sum = (x - most).exp().sum(dim, true).log() + most;
  return {keep ? sum : sum.sum(dim, false)};  // one value each: the sum only takes the dimensions away
}

Tensors softmax_backward(const PlainCall& call) {
  const at::Tensor g = call.tensor("grad_output") * call.tensor("output");
  return {g - call.tensor("output") * g.sum({call.integer("dim")}, true)};
}

Tensors log_softmax_backward(const PlainCall& call) {
  const at::Tensor g = call.tensor("grad_output");
  return {g - call.tensor("output").exp() * g.sum({call.integer("dim")}, true)};
}

// What is added to the scores: -Inf where nothing may be looked at.
at::Tensor scores(const PlainCall& call) {
  const at::Tensor q = call.tensor("query"), k = call.tensor("key");
  TORCH_CHECK(call.real("dropout_p") == 0, "attention with dropout");
  TORCH_CHECK(q.dim() >= 2 && k.dim() == q.dim(), "attention over groups");
  for (std::int64_t d = 0; d + 2 < q.dim(); ++d) TORCH_CHECK(q.size(d) == k.size(d), "attention over groups");
  check_size(q.numel() / std::max<std::int64_t>(q.size(-1), 1) * k.size(-2));
  const double scale = call.real("scale", 1 / std::sqrt(static_cast<double>(q.size(-1))));
  at::Tensor s = q.matmul(k.transpose(-2, -1)) * scale;
  if (const at::Tensor mask = call.tensor("attn_mask"); mask.defined())
    s = mask.scalar_type() == at::kBool ? s.masked_fill(mask.logical_not(), -INFINITY) : s + mask;
  if (call.flag("is_causal")) {
    const at::Tensor allowed = at::ones({s.size(-2), s.size(-1)}, s.options().dtype(at::kBool)).tril();
    s = s.masked_fill(allowed.logical_not(), -INFINITY);
  }
  return s;
}

Tensors attention(const PlainCall& call) { return {softmax_of(scores(call), -1).matmul(call.tensor("value"))}; }

Tensors attention_backward(const PlainCall& call) {
  const at::Tensor grad = call.tensor("grad_out"), q = call.tensor("query"), k = call.tensor("key"),
                   v = call.tensor("value");
  const double scale = call.real("scale", 1 / std::sqrt(static_cast<double>(q.size(-1))));
  const at::Tensor p = softmax_of(scores(call), -1);
  const at::Tensor of_p = grad.matmul(v.transpose(-2, -1)) * p;
  const at::Tensor of_s = of_p - p * of_p.sum({-1}, true);
  return {of_s.matmul(k) * scale, of_s.transpose(-2, -1).matmul(q) * scale, p.transpose(-2, -1).matmul(grad)};
}

}  // namespace

PlainForm plain_softmax(std::string_view op) {
  static const std::map<std::string_view, PlainForm> known{
      {"aten::_softmax", softmax},
      {"aten::_log_softmax", log_softmax},
      {"aten::logsumexp", logsumexp},
      {"aten::_softmax_backward_data", softmax_backward},
      {"aten::_log_softmax_backward_data", log_softmax_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
  };
  const auto found = known.find(op);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace finitude::replay
