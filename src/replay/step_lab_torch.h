// The whole captured step on torch: played again from its tape, with an edit carried out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "record/trace.h"
#include "replay/edit.h"
#include "replay/tape_player.h"

namespace finitude::replay {

// Plays below autograd with no observer: nothing of the program's is touched. One thread at a time; neither
// tape nor trace is changed, and both outlive this. The trace is the one that was taken along with the tape.
class TorchStepLab : public StepLab {
 public:
  TorchStepLab(const capture::Tape& tape, const record::Trace& trace) : tape_(tape), trace_(trace) {}
  std::string faithful() override;
  double step_seconds() const override { return step_seconds_; }
  StepTrial run(const Edit& edit) override;
  StepTrial deterministic() override;
  GuiltyRows guilty_rows(const std::vector<std::int64_t>& spare, double seconds) override;
  int again(int times) override;

 private:

  const capture::Tape& tape_;
  const record::Trace& trace_;
  double step_seconds_ = 0;
};

}  // namespace finitude::replay
