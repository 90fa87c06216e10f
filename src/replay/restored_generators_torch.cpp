#include "replay/restored_generators_torch.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "observe/generator_state_torch.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

std::string state_now() { return observe::generator_state(at::detail::getDefaultCPUGenerator()); }

class Find : public PlayObserver {
 public:
  Find(const capture::Tape& tape, const std::vector<std::size_t>& entries) : tape_(tape), entries_(entries) {}
  void before(const PlayedCall& call) override {
    for (; next_ < entries_.size() && entries_[next_] < call.index; ++next_) {
      const auto known = first_.find(tape_.entries[entries_[next_]].bytes);
      if (known != first_.end()) found.push_back({entries_[next_], known->second});
    }
    std::string state = state_now();
    if (state == last_) return;
    first_.try_emplace(state, call.index);
    last_ = std::move(state);
  }
  std::vector<Restored> found;

 private:
  const capture::Tape& tape_;
  const std::vector<std::size_t>& entries_;
  std::size_t next_ = 0;
  std::string last_;
  std::unordered_map<std::string, std::size_t> first_;  // the call before which a state was seen first
};

class Follow : public PlayObserver {
 public:
  Follow(const std::vector<Restored>& restored, capture::Tape* tape) : left(restored), tape_(tape) {}
  void before(const PlayedCall& call) override {
    std::erase_if(left, [&](const Restored& one) {
      if (one.call != call.index) return false;
      tape_->entries[one.entry].bytes = state_now();  // the player has not come to it
      return true;
    });
  }
  bool after(const PlayedCall&) override { return !left.empty(); }
  std::vector<Restored> left;

 private:
  capture::Tape* tape_;
};

}  // namespace

std::vector<Restored> find_restored(const capture::Tape& tape, const std::vector<std::size_t>& entries) {
  Find observer(tape, entries);
  play(tape, {}, &observer);
  return std::move(observer.found);
}

bool follow_restored(const std::vector<Restored>& restored, capture::Tape* tape) {
  Follow observer(restored, tape);
  play(*tape, {}, &observer);
  return observer.left.empty();
}

}  // namespace finitude::replay
