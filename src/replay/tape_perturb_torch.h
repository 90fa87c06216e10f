// A step with some of its calls computed in another way: how far do its results move?
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/tape.h"
#include "replay/tape_walk_torch.h"

namespace finitude::replay {

// What is done to a call; memory and results keep the form that they have on the tape.
enum class Perturb {
  kNoise,          // each floating input element times 1 - eps, 1 or 1 + eps of its dtype: off by at most 2 ulps
  kFloat64,        // floating inputs converted, results rounded back
  kFloat32,        // the same
  kLayout,         // the same values with other strides
  kUnfused,        // by plain operations, as decompose_torch.h has it
  kDeterministic,  // by the deterministic kernel
};
// "noise", "float64" ...; nothing: it is none.
std::optional<Perturb> perturb_named(std::string_view word);

// While a tape is played; keeps what the step came to. The noise is the same in each play of a tape.
class PerturbedCalls : public KeepOutcomes {
 public:
  // which: numbers of entries that are calls.
  PerturbedCalls(const capture::Tape& tape, Perturb how, const std::vector<std::size_t>& which);

  void change(std::size_t index, const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) override;
  std::optional<std::vector<c10::IValue>> computed(const PlayedCall& call) override;
  bool after(const PlayedCall& call) override;

  // Calls that were computed in the other way, by operator, and those that were not: the reason of the first of them.
  const std::map<std::string, std::size_t>& done() const { return done_; }
  const std::map<std::string, std::string>& as_usual() const { return as_usual_; }

 private:
  bool is_meant(std::size_t index) const { return index < which_.size() && which_[index]; }
  // Whether a result lies in memory that the call only reads: what is read in its place has to be that memory.
  bool gives_view(std::size_t index, const c10::FunctionSchema& schema) const;
  bool fits(std::size_t index, const std::vector<c10::IValue>& results) const;
  void count(std::size_t index);
  void leave(std::size_t index, const std::string& why);

  const capture::Tape& tape_;
  const Perturb how_;
  std::vector<bool> which_;  // by entry
  std::map<std::string, std::size_t> done_;
  std::map<std::string, std::string> as_usual_;
};

}  // namespace finitude::replay
