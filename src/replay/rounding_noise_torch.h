// How far the rounding of a coarse format alone moves the values of a step.
#pragma once

#include "replay/kept_values_torch.h"
#include "replay/tape_observer_torch.h"

namespace finitude::replay {

// Plays the unchanged step with each result of a coarse format off by half of the distance to the next
// number, up or down by a fixed pattern, and notes in `before` how far that moves what it kept. Errors add up
// and cancel as they do in the step itself, so that what differs by no more is rounding, however far behind
// the rounded value it lies.
class RoundingNoise : public PlayObserver {
 public:
  RoundingNoise(KeptValues& before, int pattern) : before_(before), pattern_(pattern) {}
  bool after(const PlayedCall& call) override;
  void outcome(std::size_t index, const at::Tensor& tensor) override { before_.note_noise_of_outcome(index, tensor); }

 private:
  void disturb(const at::Tensor& result, std::size_t salt) const;

  KeptValues& before_;
  const int pattern_;
};

}  // namespace finitude::replay
