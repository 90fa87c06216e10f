// cuDNN's recurrent layers by torch's own, their gradients by autograd through those; fused cells by sigmoids and
// products.
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "replay/tape_elsewhere_torch.h"

namespace finitude::replay {
namespace {

using Results = torch::jit::Stack;

enum Mode : std::int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

struct Layers {
  at::Tensor input, hx, cx;
  std::vector<at::Tensor> weights;
};

at::Tensor given(const PlainCall& call, std::string_view name) {
  const c10::IValue& value = call.value(name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

Layers layers_of(const PlainCall& call) {
  Layers layers{given(call, "input"), given(call, "hx"), given(call, "cx"), call.value("weight").toTensorVector()};
  TORCH_CHECK(call.real("dropout") == 0 || !call.flag("train"),
              "recurrent layers with a dropout whose mask no other device can make");
  TORCH_CHECK(call.integer("weight_stride0") > 0 && !layers.weights.empty(), "recurrent layers without weights");
  return layers;
}

// output, hy, cy (undefined but of an LSTM).
std::vector<at::Tensor> run(const PlainCall& call, const Layers& l) {
  const std::int64_t stride = call.integer("weight_stride0"), count = call.integer("num_layers"),
                     mode = call.integer("mode");
  const bool biased = stride >= 4, both = call.flag("bidirectional"), first = call.flag("batch_first");
  const std::vector<std::int64_t> sizes = call.integers("batch_sizes");
  const auto two = [](std::tuple<at::Tensor, at::Tensor> found) -> std::vector<at::Tensor> {
    return {std::get<0>(found), std::get<1>(found), at::Tensor()};
  };
  if (!sizes.empty()) {  // packed sequences
    const at::Tensor batches = at::tensor(sizes, at::kLong);
    if (mode == kLstm) {
      auto [out, hy, cy] = at::lstm(l.input, batches, {l.hx, l.cx}, l.weights, biased, count, 0, false, both);
      return {out, hy, cy};
    }
    if (mode == kGru) return two(at::gru(l.input, batches, l.hx, l.weights, biased, count, 0, false, both));
    return two(mode == kTanh ? at::rnn_tanh(l.input, batches, l.hx, l.weights, biased, count, 0, false, both)
                             : at::rnn_relu(l.input, batches, l.hx, l.weights, biased, count, 0, false, both));
  }
  if (mode == kLstm) {
    auto [out, hy, cy] = at::lstm(l.input, {l.hx, l.cx}, l.weights, biased, count, 0, false, both, first);
    return {out, hy, cy};
  }
  if (mode == kGru) return two(at::gru(l.input, l.hx, l.weights, biased, count, 0, false, both, first));
  return two(mode == kTanh ? at::rnn_tanh(l.input, l.hx, l.weights, biased, count, 0, false, both, first)
                           : at::rnn_relu(l.input, l.hx, l.weights, biased, count, 0, false, both, first));
}

Results layers(const PlainCall& call) {
  std::vector<at::Tensor> found = run(call, layers_of(call));
  const at::Tensor none = at::empty({0}, found[0].options());
  return {found[0], found[1], found[2].defined() ? found[2] : none, none.to(at::kByte), given(call, "weight_buf")};
}

Results layers_backward(const PlainCall& call) {
  Layers l = layers_of(call);
  // A replay runs below autograd; here it is wanted.
  const c10::impl::ForceDispatchKeyGuard usual(c10::default_included_set, c10::default_excluded_set);
  const at::AutoGradMode on(true);
  const auto leaf = [](at::Tensor& t) {
    if (t.defined()) t = t.detach().clone().requires_grad_();
  };
  leaf(l.input);
  leaf(l.hx);
  leaf(l.cx);
  for (at::Tensor& weight : l.weights) leaf(weight);
  std::vector<at::Tensor> inputs{l.input, l.hx};
  if (l.cx.defined()) inputs.push_back(l.cx);
  inputs.insert(inputs.end(), l.weights.begin(), l.weights.end());
  const std::vector<at::Tensor> found = run(call, l);
  std::vector<at::Tensor> outputs, grads;
  for (const auto& [output, name] :
       {std::pair(found[0], "grad_output"), std::pair(found[1], "grad_hy"), std::pair(found[2], "grad_cy")}) {
    if (!output.defined() || !given(call, name).defined()) continue;
    outputs.push_back(output);
    grads.push_back(given(call, name));
  }
  TORCH_CHECK(!outputs.empty(), "recurrent layers without a gradient");
  const std::vector<at::Tensor> of =
      torch::autograd::grad(outputs, inputs, grads, std::nullopt, false, /*allow_unused=*/true);
  const std::size_t states = l.cx.defined() ? 3 : 2;
  c10::List<at::Tensor> weights;
  for (std::size_t i = states; i < of.size(); ++i)
    weights.push_back(of[i].defined() ? of[i] : at::zeros_like(inputs[i]).detach());
  return {of[0], of[1], states == 3 ? of[2] : at::Tensor(), weights};
}

at::Tensor with_bias(const PlainCall& call, const char* gates, const char* bias) {
  const at::Tensor x = call.tensor(gates), b = call.tensor(bias);
  return b.defined() ? x + b : x;
}

// The workspace is what backward reads: the four gates as they are used.
Results lstm_cell(const PlainCall& call) {
  const auto g =
      (with_bias(call, "input_gates", "input_bias") + with_bias(call, "hidden_gates", "hidden_bias")).chunk(4, 1);
  const at::Tensor i = g[0].sigmoid(), f = g[1].sigmoid(), c = g[2].tanh(), o = g[3].sigmoid();
  const at::Tensor cy = f * call.tensor("cx") + i * c;
  return {o * cy.tanh(), cy, at::cat({i, f, c, o}, 1)};
}

Results lstm_cell_backward(const PlainCall& call) {
  const at::Tensor gh = call.tensor("grad_hy"), gc = call.tensor("grad_cy"), cx = call.tensor("cx"),
                   t = call.tensor("cy").tanh();
  const auto g = call.tensor("workspace").chunk(4, 1);
  const at::Tensor &i = g[0], &f = g[1], &c = g[2], &o = g[3];
  const at::Tensor of_h = gh.defined() ? gh : at::zeros_like(t);
  at::Tensor of_c = of_h * o * (1 - t * t);
  if (gc.defined()) of_c = of_c + gc;
  const at::Tensor gates =
      at::cat({of_c * c * i * (1 - i), of_c * cx * f * (1 - f), of_c * i * (1 - c * c), of_h * t * o * (1 - o)}, 1);
  return {gates, of_c * f, call.flag("has_bias") ? gates.sum({0}) : at::Tensor()};
}

// The workspace is what backward reads: reset, update and new gate, the state before, and the hidden part of the new
// gate.
Results gru_cell(const PlainCall& call) {
  const auto x = with_bias(call, "input_gates", "input_bias").chunk(3, 1),
             h = with_bias(call, "hidden_gates", "hidden_bias").chunk(3, 1);
  const at::Tensor r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid(), n = (x[2] + r * h[2]).tanh(),
                   hx = call.tensor("hx");
  return {n + z * (hx - n), at::cat({r, z, n, hx, h[2]}, 1)};
}

Results gru_cell_backward(const PlainCall& call) {
  const at::Tensor g = call.tensor("grad_hy");
  const auto w = call.tensor("workspace").chunk(5, 1);
  const at::Tensor &r = w[0], &z = w[1], &n = w[2], &hx = w[3], &hn = w[4];
  const at::Tensor of_z = g * (hx - n) * z * (1 - z), of_n = g * (1 - z) * (1 - n * n), of_r = of_n * hn * r * (1 - r);
  const at::Tensor of_x = at::cat({of_r, of_z, of_n}, 1), of_h = at::cat({of_r, of_z, of_n * r}, 1);
  const bool biased = call.flag("has_bias");
  return {of_x, of_h, g * z, biased ? of_x.sum({0}) : at::Tensor(), biased ? of_h.sum({0}) : at::Tensor()};
}

}  // namespace

DeviceForm recurrent_form(std::string_view op) {
  static const std::map<std::string_view, DeviceForm> known{
      {"aten::_cudnn_rnn", layers},
      {"aten::_cudnn_rnn_backward", layers_backward},
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
      {"aten::_thnn_fused_gru_cell", gru_cell},
      {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
  };
  const auto found = known.find(op);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace finitude::replay
