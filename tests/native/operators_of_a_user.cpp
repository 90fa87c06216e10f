// A library of operators as a user has one: in no namespace of torch. It computes itself, so that nothing of torch's is
// recorded inside of it.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <csignal>
#include <cstdlib>

namespace {

at::Tensor soft(const at::Tensor& x, double by) {
  const at::Tensor from = x.contiguous(), out = at::empty_like(from);
  const float* in = from.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < from.numel(); ++i) to[i] = std::log1p(std::exp(in[i] * static_cast<float>(by)));
  return out;
}

// Crashes where it is wanted: in a replay, not where it is recorded.
at::Tensor crashes(const at::Tensor& x) {
  const char* how = std::getenv("USEROPS_CRASH");
  if (how != nullptr) std::raise(std::atoi(how));
  return soft(x, 1);
}

}  // namespace

TORCH_LIBRARY(userops, m) {
  m.def("soft(Tensor x, float by) -> Tensor");
  m.def("crashes(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(userops, CPU, m) {
  m.impl("soft", soft);
  m.impl("crashes", crashes);
}
