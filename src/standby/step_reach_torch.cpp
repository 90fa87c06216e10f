#include "standby/step_reach_torch.h"

#include <algorithm>
#include <cstdint>

#include "gate/state_torch.h"
#include "standby/computed_dtype_torch.h"

namespace finitude::bindings {
namespace {

constexpr std::uint32_t kFirstGap = 4, kUsualGap = 256, kLongestGap = 4096;  // steps

struct Looks {
  bool on = true, is_looking = false;
  std::uint32_t ordinal = 0;  // of the optimizer whose step is looked at
  std::uint32_t gap = kFirstGap, left = kFirstGap;
  observe::SoftmaxReach found;
};
Looks the_looks;

}  // namespace

void look_at_reach(const OptimizerEntry& entry) {
  Looks& l = the_looks;
  l.found = {};
  if (!l.on) return;
  if (!l.is_looking) {
    if (--l.left > 0) return;
    l.is_looking = true;
    l.ordinal = entry.ordinal;
    observe::begin_softmax_reach();
    begin_casts();
    return;
  }
  if (l.ordinal != entry.ordinal) return;
  l.found = observe::end_softmax_reach();
  end_casts();
  l.is_looking = false;
  const bool is_any = l.found.logits > 0 || l.found.attention > 0;
  l.left = l.gap = std::min(2 * l.gap, is_any ? kUsualGap : kLongestGap);
}

observe::SoftmaxReach reach_of_step() noexcept { return the_looks.found; }
bool is_looking_at_reach() noexcept { return the_looks.is_looking; }

void forget_reach_of(const OptimizerEntry& entry) noexcept {
  if (the_looks.is_looking && the_looks.ordinal == entry.ordinal) set_reach_looks(the_looks.on);
}

void set_reach_looks(bool on) noexcept {
  if (the_looks.is_looking) observe::end_softmax_reach();
  the_looks = {};
  the_looks.on = on;
}

}  // namespace finitude::bindings
