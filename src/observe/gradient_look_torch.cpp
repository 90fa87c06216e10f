#include "observe/gradient_look_torch.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "finitude/scan.h"
#include "observe/tensor_view_torch.h"

namespace finitude::observe {

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
  const sense::Quick q = quick(v);
  mark.absmax = q.absmax;
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
