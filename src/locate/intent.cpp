#include "locate/intent.h"

#include <algorithm>
#include <cmath>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

// Elements that one bad input element may stand for by broadcasting.
std::uint64_t repeats(const record::TensorUse& in, const record::TensorUse& out) {
  if (in.health.numel == 0) return 1;
  return std::max<std::uint64_t>(1, (out.health.numel + in.health.numel - 1) / in.health.numel);
}

}  // namespace

bool is_mask_like(const sense::Health& h, record::Origin origin) noexcept {
  if (h.nan != 0 || h.inf() == 0) return false;
  if (origin != record::Origin::kUnknown && origin != record::Origin::kBuffer && origin != record::Origin::kBatch)
    return false;
  if (h.finite() == 0) return origin != record::Origin::kBatch;
  if (h.min == h.max) return true;
  if (h.zero != 0 && (h.min == 0 || h.max == 0)) {  // zero and one other value
    const double other = h.min == 0 ? h.max : h.min;
    const double expected = static_cast<double>(h.finite() - h.zero) * other * other;
    if (std::abs(h.sum_sq - expected) <= 1e-6 * expected) return true;
  }
  // Log-probabilities of impossible events. A batch gets no such credit: log-spectra of silence look the
  // same.
  return origin != record::Origin::kBatch && h.pos_inf == 0 && h.max <= 0;
}

bool grew(const record::Op& op, std::span<const Source> sources, const record::TensorUse& out) {
  if (is_move(op) && !is_cast(op)) return false;
  std::uint64_t expected = 0;
  std::uint32_t last = record::kNone;
  for (const Source& source : sources) {
    if (source.input >= op.inputs.size() || source.input == last) continue;
    last = source.input;  // the sources of one input lie side by side
    const record::TensorUse& in = op.inputs[source.input];
    if (in.health.numel > out.health.numel) return false;
    expected += in.health.non_finite() * repeats(in, out);
  }
  return !sources.empty() && out.health.non_finite() > expected;
}

}  // namespace finitude::locate
