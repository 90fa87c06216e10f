// Normalisations, variances and norms by sums, differences and square roots.
#include <cmath>
#include <map>
#include <numeric>

#include "replay/plain_call_torch.h"

namespace finitude::replay {
namespace {

using Dims = std::vector<std::int64_t>;

at::Tensor mean_of(const at::Tensor& x, const Dims& dims) { return x.mean(dims, true); }

// (x - mean) / sqrt(mean of squares + eps), over these dimensions.
at::Tensor standardised(const at::Tensor& x, const Dims& dims, double eps) {
  const at::Tensor centred = x - mean_of(x, dims);
  return centred / (mean_of(centred * centred, dims) + eps).sqrt();
}

at::Tensor scaled(at::Tensor x, const at::Tensor& weight, const at::Tensor& bias) {
  if (weight.defined()) x = x * weight;
  return bias.defined() ? x + bias : x;
}

Dims last(std::size_t count) {
  Dims dims;
  for (std::size_t d = 1; d <= count; ++d) dims.push_back(-static_cast<std::int64_t>(d));
  return dims;
}

Dims all_but_channels(const at::Tensor& x) {
  Dims dims{0};
  for (std::int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

// One value per channel, to stand beside x.
at::Tensor beside(const at::Tensor& t, const at::Tensor& x) {
  if (!t.defined()) return t;
  Dims shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = -1;
  return t.reshape(shape);
}

Tensors layer_norm(const PlainCall& call) {
  const at::Tensor x =
      standardised(call.tensor("input"), last(call.integers("normalized_shape").size()), call.real("eps"));
  return {scaled(x, call.tensor("weight"), call.tensor("bias"))};
}

// With y the standardised input: (g - mean(g) - y mean(g y)) / deviation.
Tensors layer_norm_backward(const PlainCall& call) {
  const Dims dims = last(call.integers("normalized_shape").size());
  const at::Tensor rstd = call.tensor("rstd"), y = (call.tensor("input") - call.tensor("mean")) * rstd;
  const at::Tensor g = scaled(call.tensor("grad_out"), call.tensor("weight"), {});
  return {rstd * (g - mean_of(g, dims) - y * mean_of(g * y, dims))};
}

Tensors rms_norm(const PlainCall& call) {
  const at::Tensor x = call.tensor("input");
  TORCH_CHECK(call.is_given("eps"), "an epsilon that goes by the format");
  const at::Tensor y = x / (mean_of(x * x, last(call.integers("normalized_shape").size())) + call.real("eps")).sqrt();
  return {scaled(y, call.tensor("weight"), {})};
}

Tensors batch_norm(const PlainCall& call) {
  const at::Tensor x = call.tensor("input");
  TORCH_CHECK(x.dim() >= 2, "a batch without channels");
  const double eps = call.real("eps");
  const at::Tensor y = call.flag("training") ? standardised(x, all_but_channels(x), eps)
                                             : (x - beside(call.tensor("running_mean"), x)) /
                                                   (beside(call.tensor("running_var"), x) + eps).sqrt();
  return {scaled(y, beside(call.tensor("weight"), x), beside(call.tensor("bias"), x))};
}

Tensors batch_norm_backward(const PlainCall& call) {
  const at::Tensor x = call.tensor("input"), weight = beside(call.tensor("weight"), x);
  const Dims dims = all_but_channels(x);
  at::Tensor g = call.tensor("grad_out");
  if (weight.defined()) g = g * weight;
  if (!call.flag("train")) return {g / (beside(call.tensor("running_var"), x) + call.real("eps")).sqrt()};
  const at::Tensor rstd = beside(call.tensor("save_invstd"), x), y = (x - beside(call.tensor("save_mean"), x)) * rstd;
  return {rstd * (g - mean_of(g, dims) - y * mean_of(g * y, dims))};
}

Tensors group_norm(const PlainCall& call) {
  const at::Tensor x = call.tensor("input");
  const at::Tensor grouped = x.reshape({call.integer("N"), call.integer("group"), -1});
  const at::Tensor y = standardised(grouped, {-1}, call.real("eps")).reshape(x.sizes());
  return {scaled(y, beside(call.tensor("weight"), x), beside(call.tensor("bias"), x))};
}

at::Tensor variance(const PlainCall& call) {
  const at::Tensor x = call.tensor("self");
  Dims dims(static_cast<std::size_t>(x.dim()));
  std::iota(dims.begin(), dims.end(), std::int64_t{0});
  if (call.is_given("dim") && !call.integers("dim").empty()) dims = call.integers("dim");
  double count = 1;
  for (const std::int64_t d : dims) count *= static_cast<double>(x.size(d));
  const at::Tensor centred = x - mean_of(x, dims);
  // 0 / 0 for one value, as the definition has it.
  return (centred * centred).sum(dims, call.flag("keepdim")) / (count - call.real("correction", 1));
}

Tensors var(const PlainCall& call) { return {variance(call)}; }
Tensors deviation(const PlainCall& call) { return {variance(call).sqrt()}; }

Tensors vector_norm(const PlainCall& call) {
  TORCH_CHECK(call.real("ord", 2) == 2, "a norm of another order");
  const at::Tensor x = call.tensor("self"), squares = x * x;
  const bool keep = call.flag("keepdim");
  return {
      (call.is_given("dim") && !call.integers("dim").empty() ? squares.sum(call.integers("dim"), keep) : squares.sum())
          .sqrt()};
}

Tensors weight_norm(const PlainCall& call) {
  const at::Tensor v = call.tensor("v");
  Dims dims;
  for (std::int64_t d = 0; d < v.dim(); ++d) {
    if (d != (call.integer("dim") + v.dim()) % v.dim()) dims.push_back(d);
  }
  return {v * (call.tensor("g") / (v * v).sum(dims, true).sqrt())};
}

Tensors distance(const PlainCall& call) {
  TORCH_CHECK(call.real("p") == 2, "a distance of another order");
  check_size(call.tensor("x1").numel() * call.tensor("x2").size(-2));
  const at::Tensor d = call.tensor("x1").unsqueeze(-2) - call.tensor("x2").unsqueeze(-3);
  return {(d * d).sum({-1}).sqrt()};
}

}  // namespace

PlainForm plain_norm(std::string_view op) {
  static const std::map<std::string_view, PlainForm> known{
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::_fused_rms_norm", rms_norm},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_group_norm", group_norm},
      {"aten::var", var},
      {"aten::std", deviation},
      {"aten::linalg_vector_norm", vector_norm},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_cdist_forward", distance},
  };
  const auto found = known.find(op);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace finitude::replay
