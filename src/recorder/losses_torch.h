// The losses of one run of a step, and what has to come out again when it runs a second time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/watched_torch.h"

namespace finitude::recorder {

struct Loss {
  const c10::TensorImpl* tensor = nullptr;  // to distinguish one from another; not to be looked into
  double value = 0;                         // of one element; NaN or Inf where some element of several is
  bool bad = false;
  std::string unread;  // where it lies, if its values cannot be read
  std::uint64_t sum = 0;
};

// Reads it. Where it cannot be read, a finite loss with value 0.
Loss look_at_loss(const at::Tensor& loss);

// Bits. Equal ones: the same step.
struct Fingerprint {
  std::vector<std::uint64_t> losses, gradients;
  std::vector<std::string> generators;
  bool operator==(const Fingerprint&) const = default;
};

Fingerprint fingerprint(const std::vector<Loss>& losses, const Watched& watched, const Generators& generators);

}  // namespace finitude::recorder
