// The whole captured step on torch: played again from its tape, with an edit carried out.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/tape.h"
#include "record/trace.h"
#include "replay/earlier_weights_torch.h"
#include "replay/edit.h"
#include "replay/edit_sites_torch.h"
#include "replay/kept_values_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {

// Plays below autograd with no observer: nothing of the program's is touched. One thread at a time; neither
// tape nor trace is changed, and both outlive this. The trace is the one that was taken along with the tape.
std::string judged_in(const capture::Tape& tape);

class TorchStepLab : public StepLab {
 public:
  // find_update: asked at most once, with the step's weights in place; null: nothing is known of the optimizer.
  TorchStepLab(const capture::Tape& tape, const record::Trace& trace, FindLastUpdate find_update = {})
      : tape_(tape), trace_(trace), find_update_(std::move(find_update)) {}
  std::string faithful() override;
  double step_seconds() const override { return step_seconds_; }
  std::string judged() const override { return judged_in(tape_); }
  StepTrial run(const Edit& edit) override;
  std::vector<double> beside(const Beside& beside, double value) override;
  StepTrial deterministic() override;
  GuiltyRows guilty_rows(const std::vector<std::int64_t>& spare, const JudgedOp& birth, double seconds) override;
  FillTrial filled(double seconds) override;
  StepTrial after_share_of_update(double share) override;
  double size_of_update() override { return relative_size(last_update()); }
  int again(int times) override;
  Repeats repeats(int times, int threads) override;

 private:
  StepTrial play_edited(const Edit& edit, const EditSites& sites, const KeptValues& before) const;
  std::optional<std::size_t> first_reader(record::OpId birth) const;
  const LastUpdate& last_update();

  const capture::Tape& tape_;
  const record::Trace& trace_;
  const FindLastUpdate find_update_;
  std::optional<LastUpdate> last_update_;
  double step_seconds_ = 0;
};

}  // namespace finitude::replay
