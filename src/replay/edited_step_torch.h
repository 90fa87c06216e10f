// Carries an edit out while a tape is played, and holds what comes of it against the unchanged step.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "replay/edit.h"
#include "replay/edit_sites_torch.h"
#include "replay/kept_values_torch.h"
#include "replay/tape_calls.h"
#include "replay/tape_observer_torch.h"

namespace finitude::replay {

// "loss", "gradient of head.weight": how a result of a step is reported of.
std::string outcome_name(const capture::Outcome& outcome);

class EditedStep : public PlayObserver {
 public:
  EditedStep(const capture::Tape& tape, const EditSites& sites, const Edit& edit, const KeptValues& before)
      : tape_(tape),
        sites_(sites),
        edit_(edit),
        before_(before),
        states_(sites.sites.size()),
        clean_(sites.nodes.size(), true) {}

  void change(std::size_t index, const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) override;
  bool after(const PlayedCall& call) override;
  void outcome(std::size_t index, const at::Tensor& tensor) override;

  // Whether any value was replaced.
  bool did_something() const { return changed_; }
  std::vector<std::string> bad;
  std::string difference;
  std::uint64_t compared = 0;

 private:
  struct State {
    at::Tensor argument;  // as the call reads it now
    at::Tensor replaced;  // which of its elements; undefined: none
  };
  void change_argument(std::size_t site, std::vector<c10::IValue>& arguments);
  void change_node(std::size_t node, std::size_t index, std::vector<c10::IValue>& arguments);
  void end_node(const EditedNode& node, bool clean);
  void compare(const PlayedCall& call);
  bool has_factor(const PlayedCall& call);
  at::Tensor edited(const at::Tensor& tensor, at::Tensor* replaced) const;

  const capture::Tape& tape_;
  const EditSites& sites_;
  const Edit& edit_;
  const KeptValues& before_;
  std::vector<State> states_;
  std::vector<bool> clean_;  // of nodes: they were given finite values
  std::unordered_map<capture::StorageId, at::Tensor> handed_on_;
  std::unordered_set<capture::StorageId> spared_;       // made of what may differ
  std::unordered_set<capture::StorageId> with_factor_;  // exponentials of shifted exponents, and what is made of them
  mutable at::Tensor maximum_;                          // kShift: what was subtracted
  bool changed_ = false;
};

}  // namespace finitude::replay
