// Looking on while a tape is played: every call reported, or one call stopped at.
#pragma once

#include <string>
#include <vector>

#include "capture/tape.h"
#include "replay/tape_calls.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {

// A line for each call: its number, name, what it gave and wrote, and the line of the program. A call with
// finite tensors in and others out is marked.
class EveryCall : public PlayObserver {
 public:
  EveryCall(const capture::Tape& tape, Say say) : tape_(tape), say_(std::move(say)) {}
  void before(const PlayedCall& call) override;
  bool after(const PlayedCall& call) override;

 private:
  const capture::Tape& tape_;
  const Say say_;
  bool finite_before_ = true;
};

// Ends the replay after one call and keeps what that read and gave.
class StopAt : public PlayObserver {
 public:
  explicit StopAt(std::size_t index) : index_(index) {}
  void before(const PlayedCall& call) override;
  bool after(const PlayedCall& call) override;

  std::size_t index() const { return index_; }
  // Copies: the inputs from before the call; the outputs are results and what it wrote.
  std::vector<NamedTensor> inputs, outputs;

 private:
  const std::size_t index_;
};
std::string report_stop(const capture::Tape& tape, const StopAt& stop);

// Keeps what the step came to, named "loss", "gradient.head.weight" ...
class KeepOutcomes : public PlayObserver {
 public:
  explicit KeepOutcomes(const capture::Tape& tape) : tape_(tape) {}
  void outcome(std::size_t index, const at::Tensor& tensor) override;

  std::vector<NamedTensor> outcomes;

 private:
  const capture::Tape& tape_;
};

}  // namespace finitude::replay
