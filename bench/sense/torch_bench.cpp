// What a user would write with torch instead, on the same memory. Each answers "is it finite" as a bool on
// the host.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "sense/scan_bench.h"
#include "sense/workload.h"

namespace finitude::bench {
namespace {

at::ScalarType scalar_type(sense::DType dtype) {
  switch (dtype) {
    case sense::DType::kFloat64:
      return at::kDouble;
    case sense::DType::kFloat16:
      return at::kHalf;
    case sense::DType::kBFloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

}  // namespace

void add_torch() {
  at::init_num_threads();  // now, not inside the first operation, where it would undo use_threads()
  benchmark::AddCustomContext("torch", FINITUDE_BENCH_TORCH);
  for (const int threads : {1, 2}) {
    for (const sense::DType dtype : kDTypes) {
      for (const std::size_t bytes : kSizes) {
        const auto numel = static_cast<std::int64_t>(bytes / sense::info(dtype).size_bytes);
        const at::Tensor tensor = at::from_blob(memory(), {numel}, at::TensorOptions(scalar_type(dtype)));
        const std::vector<at::Tensor> list = {tensor};
        const at::Tensor found = at::zeros({1}), scale = at::ones({1});
        add("isfinite_all", dtype, threads, bytes,
            [=] { benchmark::DoNotOptimize(at::isfinite(tensor).all().item<bool>()); });
        add("foreach_norm", dtype, threads, bytes,
            [=] { benchmark::DoNotOptimize(std::isfinite(at::_foreach_norm(list)[0].item<double>())); });
        add("amp_unscale", dtype, threads, bytes, [=] {
          at::Tensor is_found = found;
          at::_amp_foreach_non_finite_check_and_unscale_(list, is_found, scale);
          benchmark::DoNotOptimize(is_found.item<float>() != 0);
        });
      }
    }
  }
}

}  // namespace finitude::bench
