#include "observe/gradient_look_torch.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "finitude/scan.h"
#include "observe/tensor_view_torch.h"
#include "observe/threads_torch.h"
#include "sense/norm_scan.h"

namespace finitude::observe {
namespace {

sense::Norm norm_of(const TensorView& v) noexcept {
  if (v.contiguous) return sense::norm_scan(v.data, static_cast<std::size_t>(v.numel), v.dtype, torch_threads());
  return sense::norm_scan_strided(v.data, v.sizes.data(), v.strides.data(), static_cast<int>(v.sizes.size()), v.dtype,
                                  torch_threads());
}

}  // namespace

std::uint32_t version_of(const c10::TensorImpl& impl) {
  return const_cast<c10::TensorImpl&>(impl).is_inference()
             ? 0
             : const_cast<c10::TensorImpl&>(impl).version_counter().current_version();
}

GradMark judge_gradient(const at::Tensor& grad) {
  GradMark mark;
  const c10::TensorImpl* impl = grad.unsafeGetTensorImpl();
  mark.grad = impl;
  mark.version = version_of(*impl);
  mark.state = GradMark::kClean;
  TensorView v;
  at::Tensor values;
  if (grad.is_sparse()) {  // duplicates are summed before the optimizer uses them
    at::NoGradGuard no_grad;
    values = grad.coalesce()._values();
    if (!view_of(*values.unsafeGetTensorImpl(), &v)) return mark;
  } else if (!view_of(*impl, &v)) {
    return mark;
  }
  const sense::Norm q = norm_of(v);
  mark.absmax = q.absmax;
  if (!q.bad && v.dtype != sense::DType::kOther) mark.norm = q.norm;
  if (q.bad) {
    mark.state = full(v).nan ? GradMark::kNaN : GradMark::kInfinite;
    if (v.contiguous) {
      mark.first_bad =
          static_cast<std::int64_t>(sense::first_non_finite(v.data, static_cast<std::size_t>(v.numel), v.dtype));
    }
  }
  return mark;
}

}  // namespace finitude::observe
