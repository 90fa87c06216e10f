#include "replay/fill_unwritten_torch.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "replay/tape_calls.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::StorageId;
using capture::Tape;

constexpr std::size_t kMostAlone = 32;  // allocations that are tried one by one

bool is_unwritten(const Entry& entry) {
  return entry.kind == Entry::kFill && entry.traced != capture::kNotTraced && !entry.bytes.empty();
}

// By storage: everything that looks at it sees numbers with a NaN.
std::vector<bool> of_floats(const Tape& tape) {
  std::vector<bool> seen(tape.storages.size(), false), other(tape.storages.size(), false);
  const auto see = [&](const capture::TensorRef& t) {
    if (t.storage >= seen.size()) return;
    const auto dtype = static_cast<c10::ScalarType>(t.dtype);
    auto& list = c10::isFloatingType(dtype) || c10::isComplexType(dtype) ? seen : other;
    list[t.storage] = true;
  };
  for (const Entry& entry : tape.entries) {
    capture::for_each_tensor(entry.args, see);
    capture::for_each_tensor(entry.results, see);
  }
  for (std::size_t id = 0; id < seen.size(); ++id) seen[id] = seen[id] && !other[id];
  return seen;
}

// The calls whose memory is filled: all, one, or all but one.
struct Makers {
  enum { kAll, kOne, kAllBut } which = kAll;
  std::uint32_t made = 0;

  bool hold(std::uint32_t call) const { return which == kAll || (call == made) == (which == kOne); }
};

class Fill : public PlayObserver {
 public:
  // byte: 0xff four or eight times over is a NaN, as it is in all shorter formats.
  Fill(const Tape& tape, unsigned char byte, const std::vector<bool>* only, Makers makers)
      : tape_(tape), byte_(byte), only_(only), makers_(makers) {}

  void filled(std::size_t index, c10::Storage& storage) override {
    const Entry& entry = tape_.entries[index];
    if (!is_unwritten(entry) || !makers_.hold(entry.traced) || (only_ != nullptr && !(*only_)[entry.number])) return;
    std::memset(static_cast<char*>(storage.mutable_data()) + entry.offset, byte_, entry.bytes.size());
    any = true;
  }

  bool any = false;

 private:
  const Tape& tape_;
  const unsigned char byte_;
  const std::vector<bool>* const only_;  // by storage; null: all
  const Makers makers_;
};

StepTrial play_filled(const Tape& tape, unsigned char byte, const std::vector<bool>* only, Makers makers) {
  StepTrial trial;
  Fill fill(tape, byte, only, makers);
  const Played played = play(tape, {}, &fill);
  trial.seconds = played.seconds;
  trial.why_not = !played.missing.empty() ? played.missing.front() : played.why_not;
  trial.ran = trial.why_not.empty() && fill.any;
  trial.bad = played.bad();
  if (trial.ran && played.identical()) trial.difference = "the same bits as it was";
  return trial;
}

std::string name_of_maker(const Tape& tape, std::uint32_t made) {
  for (const Entry& entry : tape.entries) {
    if (entry.kind == Entry::kCall && entry.traced == made && entry.number < tape.operators.size())
      return tape.operators[entry.number].name;
  }
  return "an allocation";
}

bool is_bad(const capture::Outcome& o) { return o.kind == "buffer" ? o.flaws.nan != 0 : !o.flaws.finite(); }

// Calls whose memory the step read unwritten; `bytes` of it.
std::vector<std::uint32_t> makers_of(const Tape& tape, std::uint64_t* bytes) {
  std::vector<std::uint32_t> makers;
  for (const Entry& entry : tape.entries) {
    if (!is_unwritten(entry)) continue;
    *bytes += entry.bytes.size();
    if (std::find(makers.begin(), makers.end(), entry.traced) == makers.end()) makers.push_back(entry.traced);
  }
  return makers;
}

class Budget {
 public:
  explicit Budget(double seconds) : seconds_(seconds) {}
  bool is_left() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count() < seconds_;
  }

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const double seconds_;
};

}  // namespace

FillTrial fill_unwritten(const Tape& tape, double seconds) {
  const Budget time(seconds);
  FillTrial trial;
  // Nothing can be learned of a step whose results were fine.
  if (std::none_of(tape.outcomes.begin(), tape.outcomes.end(), is_bad)) return trial;
  const std::vector<std::uint32_t> makers = makers_of(tape, &trial.bytes);
  if (makers.empty()) return trial;
  trial.made = makers.front();
  trial.zeros = play_filled(tape, 0, nullptr, {});
  const std::vector<bool> floats = of_floats(tape);
  trial.nans = play_filled(tape, 0xff, &floats, {});
  if (trial.zeros.ran && trial.zeros.bad.empty() && makers.size() > 1) {
    for (std::size_t i = 0; i < std::min(makers.size(), kMostAlone) && time.is_left(); ++i) {
      const StepTrial others = play_filled(tape, 0, nullptr, {Makers::kAllBut, makers[i]});
      if (!others.why_not.empty() || others.bad.empty()) continue;
      trial.made = makers[i];
      break;
    }
  }
  trial.op = name_of_maker(tape, trial.made);
  return trial;
}

FillTrial fill_unwritten_of_finite(const Tape& tape, double seconds) {
  const Budget time(seconds);
  FillTrial trial;
  if (std::any_of(tape.outcomes.begin(), tape.outcomes.end(), is_bad)) return trial;
  const std::vector<std::uint32_t> makers = makers_of(tape, &trial.bytes);
  if (makers.empty()) return trial;
  trial.made = makers.front();
  const std::vector<bool> floats = of_floats(tape);
  trial.nans = play_filled(tape, 0xff, &floats, {});
  if (!trial.nans.ran || trial.nans.bad.empty()) return trial;
  trial.zeros = play_filled(tape, 0, nullptr, {});
  for (std::size_t i = 0; makers.size() > 1 && i < std::min(makers.size(), kMostAlone) && time.is_left(); ++i) {
    const StepTrial alone = play_filled(tape, 0xff, &floats, {Makers::kOne, makers[i]});
    if (!alone.ran || alone.bad.empty()) continue;
    trial.made = makers[i];
    break;
  }
  trial.op = name_of_maker(tape, trial.made);
  return trial;
}

}  // namespace finitude::replay
