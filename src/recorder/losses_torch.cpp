#include "recorder/losses_torch.h"

#include <cmath>

#include "observe/tensor_view_torch.h"

namespace finitude::recorder {

Loss look_at_loss(const at::Tensor& tensor) {
  Loss loss;
  observe::TensorView v;
  if (!tensor.defined()) return loss;
  if (!observe::view_of(*tensor.unsafeGetTensorImpl(), &v)) {
    loss.unread = tensor.device().str();
    return loss;
  }
  loss.tensor = tensor.unsafeGetTensorImpl();
  const sense::Health h = observe::full(v);
  loss.bad = !h.ok();
  loss.value = h.nan ? NAN : h.pos_inf ? INFINITY : h.neg_inf ? -INFINITY : v.numel == 1 ? h.max : 0;
  loss.sum = observe::checksum(v);
  return loss;
}

Fingerprint fingerprint(const std::vector<Loss>& losses, const Watched& watched, const Generators& generators) {
  Fingerprint bits;
  for (const Loss& loss : losses) bits.losses.push_back(loss.sum);
  watched.for_each([&](std::size_t, const at::Tensor& p) {
    const at::Tensor* gradient = gradient_of(p);
    observe::TensorView v;
    const bool readable = gradient != nullptr && observe::view_of(*gradient->unsafeGetTensorImpl(), &v);
    bits.gradients.push_back(readable ? observe::checksum(v) : 0);
  });
  generators.take(&bits.generators);
  return bits;
}

}  // namespace finitude::recorder
