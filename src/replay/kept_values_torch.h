// What a replay of the unchanged step came to, call by call, and a changed one held against it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/tape.h"
#include "replay/edit_sites_torch.h"
#include "replay/tape_observer_torch.h"

namespace finitude::replay {

// The distance from 1 to the next number of its format.
double epsilon_of(const at::Tensor& tensor);

// The tensors that a call gave and wrote, each once; none of a call that only allocates.
std::vector<at::Tensor> reported_by(const PlayedCall& call);

// Copies what the calls that an edit reaches give and write in the unchanged step, and notes the rows that the
// birth touched: those in which the edited calls or their nodes have a value that is not finite. A finite value that a
// pointwise call makes of NaN says nothing of the sound step (the sign of NaN is 0, no comparison with it holds): it
// counts as NaN, and so does in this replay what is made of it.
class KeptValues : public PlayObserver {
 public:
  // sites outlives this. Throws c10::Error in a replay that would keep more than max_bytes. by_coarsest: ulps are
  // those of the coarsest format among all these values, for a step that is computed in another one: what was
  // computed of half-precision values is as far off as those, whatever format holds it.
  KeptValues(const EditSites& sites, std::size_t max_bytes, bool by_coarsest)
      : sites_(sites), max_bytes_(max_bytes), by_coarsest_(by_coarsest) {}
  bool after(const PlayedCall& call) override;
  void outcome(std::size_t index, const at::Tensor& tensor) override;

  // Of the coarsest format among all values.
  double coarsest() const { return coarsest_; }
  std::string coarsest_format() const;
  // A replay of the unchanged step in which results were rounded otherwise (rounding_noise_torch.h): how far that moved
  // this call's. From then on, that much and the smallest number of the coarsest format are no difference either.
  void note_noise(const PlayedCall& call);
  void note_noise_of_outcome(std::size_t index, const at::Tensor& tensor);

  struct Comparison {
    std::string why;             // the first value that differs and may not
    std::uint64_t compared = 0;  // values that were finite and may not differ
    bool spared = false;         // others differ: what is made of them may differ too
  };
  // Holds what a call of the changed step gave against what it gave before. What was finite and lies in no touched
  // row may not differ by more than 8 ulp x sqrt(n): n the most values that the call reads or gives, ulp that of
  // the largest value of the row, in the format of the unchanged step. Spared are touched rows, truth values and
  // indices made of values that were not finite, and, where the call reads what was spared (of_spared), tensors
  // without these rows: sums over them.
  Comparison compare(const PlayedCall& call, bool of_spared) const;
  // The same for a result of the step.
  Comparison compare_outcome(std::size_t index, const at::Tensor& now) const;

 private:
  void note_rows(const at::Tensor& tensor);
  void undo_decisions(const PlayedCall& call);
  at::Tensor decided_by_nan(const at::Tensor& flags) const;
  void compare_one(const at::Tensor& before, const at::Tensor& now, const at::Tensor& noise, double n, bool spare_rows,
                   bool spare_others, Comparison* out) const;

  const EditSites& sites_;
  const std::size_t max_bytes_;
  const bool by_coarsest_;
  double coarsest_ = 0;                                   // its distance from 1 to the next number
  double smallest_ = 0;                                   // its smallest number
  std::map<std::size_t, std::vector<at::Tensor>> noise_;  // by entry, as values_
  std::map<std::size_t, at::Tensor> outcome_noise_;
  std::size_t bytes_ = 0;
  std::map<std::size_t, std::vector<at::Tensor>> values_;  // by entry
  std::set<std::size_t> read_bad_;                         // entries that read values that are not finite
  std::map<std::size_t, at::Tensor> outcomes_;
  std::map<std::int64_t, std::set<std::int64_t>> touched_;  // number of rows -> those
  std::vector<std::pair<at::Tensor, at::Tensor>> decided_;  // truth values; which of them were made of NaN
};

}  // namespace finitude::replay
