// Which call of a tape made the first value that is not finite, by looking at all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "replay/tape_observer_torch.h"

namespace finitude::replay {

// What the report says of the birth; empty and 0 where it says nothing.
struct BirthHint {
  std::string op, file, node;  // "aten::log"; absolute; "SqrtBackward0"
  std::uint32_t line = 0;
  bool backward = false;
};

// Notes the calls that gave or wrote something that is not finite.
class FindBirth : public PlayObserver {
 public:
  explicit FindBirth(const capture::Tape& tape) : tape_(tape) {}
  void before(const PlayedCall& call) override;
  bool after(const PlayedCall& call) override;

  // The call that the hint means, else the first that made it of finite tensors and numbers; nothing where
  // none did. What a call read that was bad already speaks against it.
  std::optional<std::size_t> birth(const BirthHint& hint) const;

 private:
  struct Suspect {
    std::size_t index = 0;
    int weight = 0;  // 3: of finite values; 2: a NaN of values without one; 1: it was bad before
  };
  const capture::Tape& tape_;
  std::vector<Suspect> suspects_;
  bool finite_in_ = true, nan_in_ = false;
};

}  // namespace finitude::replay
