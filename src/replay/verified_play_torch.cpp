#include "replay/verified_play_torch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "base/pinned_core_posix.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

using observe::CallDigest;

constexpr std::size_t kNoCall = static_cast<std::size_t>(-1);
// Two plays that agree say little of a kernel whose order of additions varies.
enum class Core : std::uint8_t { kOther, kHome };
constexpr std::array kPlays{Core::kOther, Core::kOther, Core::kHome, Core::kHome, Core::kOther};

using Key = std::tuple<record::OpId, std::string, std::string>;

// The digest of each call on the tape; kNoCall where it has none, or where it is not clear which.
std::vector<std::size_t> calls_of(const capture::Tape& tape, const std::vector<CallDigest>& calls) {
  std::map<Key, std::deque<std::size_t>> found;
  std::map<Key, std::size_t> wanted;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].ended) found[{calls[i].traced, calls[i].name.name, calls[i].name.overload}].push_back(i);
  }
  const auto key_of = [&](const capture::Entry& e) {
    return Key{e.traced, tape.operators[e.number].name, tape.operators[e.number].overload};
  };
  for (const capture::Entry& e : tape.entries) {
    if (e.kind == capture::Entry::kCall) ++wanted[key_of(e)];
  }
  std::vector<std::size_t> of(tape.entries.size(), kNoCall);
  for (std::size_t i = 0; i < tape.entries.size(); ++i) {
    const capture::Entry& e = tape.entries[i];
    if (e.kind != capture::Entry::kCall || e.traced == capture::kNotTraced) continue;
    const auto it = found.find(key_of(e));
    if (it == found.end() || it->second.empty() || wanted[it->first] != it->second.size()) continue;
    of[i] = it->second.front();
    it->second.pop_front();
    --wanted[it->first];
  }
  return of;
}

struct Seen {
  std::vector<std::uint64_t> inputs, outputs;
};

class SeeDigests : public PlayObserver {
 public:
  SeeDigests(const capture::Tape& tape, const StepDigests& step, const std::vector<std::size_t>& calls)
      : seen(tape.entries.size()), differing(tape.outcomes.size(), false), step_(step), calls_(calls) {}

  void before(const PlayedCall& call) override {
    if (calls_[call.index] == kNoCall) return;
    seen[call.index].inputs = observe::input_digests(call.arguments, step_.calls[calls_[call.index]].overwrites);
  }
  bool after(const PlayedCall& call) override {
    if (calls_[call.index] == kNoCall) return true;
    const std::uint64_t writes = step_.calls[calls_[call.index]].writes;
    auto& outputs = seen[call.index].outputs;
    for (const c10::IValue& result : call.results) outputs.push_back(observe::value_digest(result));
    for (std::size_t i = 0; i < call.arguments.size() && i < 64; ++i) {
      if (((writes >> i) & 1) == 0) continue;
      if (call.arguments[i].isTensor()) outputs.push_back(observe::value_digest(call.arguments[i]));
      if (!call.arguments[i].isTensorList()) continue;
      for (const c10::IValue& item : call.arguments[i].toListRef()) outputs.push_back(observe::value_digest(item));
    }
    return true;
  }
  void outcome(std::size_t index, const at::Tensor& tensor) override {
    if (index >= step_.outcomes.size() || !step_.outcomes[index].defined()) return;
    bytes.emplace(index, differing_bytes(step_.outcomes[index], tensor));
    differing[index] = bytes[index].bytes != 0;
  }

  std::vector<Seen> seen;
  std::map<std::size_t, DifferingBytes> bytes;
  std::vector<bool> differing;

 private:
  const StepDigests& step_;
  const std::vector<std::size_t>& calls_;
};

std::size_t first_of(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// home: of the calling thread, which has just computed the step; others that it may run on. -1: there is none.
struct Cores {
  int home = -1, other = -1, third = -1;
};

// The next one each time, so that all cores are compared in turn.
Cores choose_cores() {
  static std::atomic<std::size_t> turn{0};
  const int home = base::current_core();
  std::vector<int> others = base::allowed_cores();
  std::erase(others, home);
  if (home < 0 || others.empty()) return {};
  const std::size_t next = turn++;
  const int other = others[next % others.size()];
  return {home, other, others.size() > 1 ? others[(next + 1) % others.size()] : -1};
}

class Judge {
 public:
  Judge(const capture::Tape& tape, const StepDigests& step, std::set<std::string>* nondeterministic)
      : tape_(tape), step_(step), nondeterministic_(nondeterministic), calls_(calls_of(tape, step.calls)) {}

  VerifiedStep run() {
    VerifiedStep found;
    found.calls = static_cast<std::size_t>(std::count_if(
        tape_.entries.begin(), tape_.entries.end(), [](const auto& e) { return e.kind == capture::Entry::kCall; }));
    found.compared =
        static_cast<std::size_t>(std::count_if(calls_.begin(), calls_.end(), [](auto c) { return c != kNoCall; }));
    while (plays_.size() < kPlays.size()) {
      found.why_not = play_on(kPlays[plays_.size()] == Core::kHome ? cores_.home : cores_.other);
      if (!found.why_not.empty()) {
        found.kind = VerifiedStep::kNotPlayed;
        return found;
      }
      found.plays = plays_.size();
      if (plays_.size() == 1 && is_same()) return found;
    }
    learn();
    judge(&found);
    if (found.kind == VerifiedStep::kOperation && depends_on_core(found.entry))
      name_cores(&found);
    else if (found.kind == VerifiedStep::kOperation)
      try_other_threads(&found);
    return found;
  }

 private:
  // Why it cannot be played; empty: it was.
  std::string play_on(int core, int threads = 0) {
    const base::PinnedCore pin(core);
    SeeDigests seen(tape_, step_, calls_);
    PlayOptions options;
    options.threads = threads;
    const Played played = play(tape_, options, &seen);
    std::string why = played.missing.empty() ? played.why_not : played.missing.front();
    if (why.empty()) plays_.push_back(std::move(seen));
    return why;
  }

  // From the same bytes the recorded bits in each play on the core of the step, and others, the same ones in each play,
  // on the other core.
  bool depends_on_core(std::size_t i) const {
    if (cores_.other < 0) return false;
    for (std::size_t p = 0; p < kPlays.size(); ++p) {
      const Seen& seen = plays_[p].seen[i];
      const auto& wanted = kPlays[p] == Core::kHome ? call(i).outputs : plays_[0].seen[i].outputs;
      if (seen.inputs != call(i).inputs || seen.outputs != wanted) return false;
    }
    return !same_outputs(i);
  }

  void name_cores(VerifiedStep* found) {
    found->core = cores_.home;
    found->other_core = cores_.other;
    if (cores_.third < 0 || !play_on(cores_.third).empty()) return;
    const auto& outputs = plays_.back().seen[found->entry].outputs;
    if (outputs == call(found->entry).outputs) found->odd_core = cores_.other;
    if (outputs == plays_[0].seen[found->entry].outputs) found->odd_core = cores_.home;
  }

  // What the operation gives from the same bytes with one thread, or with two where the step had one.
  void try_other_threads(VerifiedStep* found) {
    const std::string* const had = tape_.setting("threads");
    const int threads = had != nullptr && *had == "1" ? 2 : 1;
    if (!play_on(cores_.home, threads).empty()) return;
    const Seen& seen = plays_.back().seen[found->entry];
    if (seen.inputs != call(found->entry).inputs) return;  // what came before it adds in another order
    found->other_threads = threads;
    if (seen.outputs == plays_[0].seen[found->entry].outputs) found->gives = VerifiedStep::kOfPlays;
    if (seen.outputs == call(found->entry).outputs) found->gives = VerifiedStep::kOfStep;
  }

  const CallDigest& call(std::size_t entry) const { return step_.calls[calls_[entry]]; }
  bool same_inputs(std::size_t i) const { return call(i).inputs == plays_[0].seen[i].inputs; }
  bool same_outputs(std::size_t i) const { return call(i).outputs == plays_[0].seen[i].outputs; }

  bool is_same() const {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i] != kNoCall && (!same_inputs(i) || !same_outputs(i))) return false;
    }
    return std::none_of(plays_[0].differing.begin(), plays_[0].differing.end(), [](bool d) { return d; });
  }

  void learn() {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i] == kNoCall || depends_on_core(i)) continue;
      for (std::size_t p = 1; p < plays_.size(); ++p) {
        if (plays_[p].seen[i].inputs == plays_[0].seen[i].inputs &&
            plays_[p].seen[i].outputs != plays_[0].seen[i].outputs)
          nondeterministic_->insert(tape_.operators[tape_.entries[i].number].name);
      }
    }
  }

  // What nobody read after it was made is no part of the step: a kernel may leave memory there unwritten.
  bool is_read_after(std::size_t entry) const {
    for (std::size_t i = entry + 1; i < calls_.size(); ++i) {
      if (calls_[i] != kNoCall && !same_inputs(i)) return true;
    }
    return std::any_of(plays_[0].differing.begin(), plays_[0].differing.end(), [](bool d) { return d; });
  }

  // Has the last call that had to do with its memory a digest?
  bool has_known_maker(std::size_t outcome) const {
    std::set<capture::StorageId> memory;
    capture::for_each_tensor(tape_.outcomes[outcome].value, [&](const auto& t) { memory.insert(t.storage); });
    bool touches = false;
    const auto touch = [&](const capture::TensorRef& t) { touches |= memory.contains(t.storage); };
    for (std::size_t i = tape_.entries.size(); i-- > 0;) {
      capture::for_each_tensor(tape_.entries[i].args, touch);
      capture::for_each_tensor(tape_.entries[i].results, touch);
      if (touches) return calls_[i] != kNoCall;
    }
    return false;
  }

  void judge(VerifiedStep* found) const {
    bool has_noise = false;  // what follows may differ because of a kernel that is not to blame
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i] == kNoCall) continue;
      if (!same_inputs(i)) {
        if (has_noise) continue;
        found->kind = VerifiedStep::kMemory;
        found->entry = i;
        found->argument = first_of(call(i).inputs, plays_[0].seen[i].inputs);
        return;
      }
      if (same_outputs(i)) continue;
      if (nondeterministic_->contains(tape_.operators[tape_.entries[i].number].name) || !is_read_after(i)) {
        has_noise = true;
        continue;
      }
      found->kind = VerifiedStep::kOperation;
      found->entry = i;
      return;
    }
    if (has_noise) {
      found->kind = VerifiedStep::kUnjudged;
      return;
    }
    const auto& differing = plays_[0].differing;
    const auto outcome = std::find(differing.begin(), differing.end(), true);
    if (outcome == differing.end()) return;
    found->outcome = static_cast<std::size_t>(outcome - differing.begin());
    found->kind = has_known_maker(found->outcome) ? VerifiedStep::kOutcome : VerifiedStep::kUnjudged;
    found->bytes = plays_[0].bytes.at(found->outcome);
  }

  const capture::Tape& tape_;
  const StepDigests& step_;
  std::set<std::string>* const nondeterministic_;
  const std::vector<std::size_t> calls_;
  const Cores cores_ = choose_cores();
  std::vector<SeeDigests> plays_;  // the first ones as in kPlays
};

}  // namespace

DifferingBytes differing_bytes(const at::Tensor& ours, const at::Tensor& played) {
  DifferingBytes found;
  if (!ours.is_cpu() || !played.is_cpu() || ours.layout() != c10::kStrided || played.layout() != c10::kStrided ||
      ours.sizes() != played.sizes() || ours.scalar_type() != played.scalar_type() || ours.numel() == 0)
    return found;
  const bool is_dense = ours.is_contiguous();
  const at::Tensor a = ours.contiguous(), b = played.contiguous();
  const auto* const x = static_cast<const unsigned char*>(a.const_data_ptr());
  const auto* const y = static_cast<const unsigned char*>(b.const_data_ptr());
  constexpr std::size_t kAtOnce = 4096;  // nearly always all bytes are the same
  for (std::size_t begin = 0; begin < a.nbytes(); begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, a.nbytes());
    if (std::memcmp(x + begin, y + begin, end - begin) == 0) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if (x[i] == y[i]) continue;
      if (found.bytes++ == 0) found.first = i;
      found.last = i;
      found.bits += static_cast<std::size_t>(std::popcount(static_cast<unsigned char>(x[i] ^ y[i])));
    }
  }
  if (found.bytes == 0 || !is_dense) return found;
  found.address = reinterpret_cast<std::uint64_t>(x) + found.first;
  for (const std::size_t block : {std::size_t{2048}, std::size_t{512}}) {
    if (found.block == 0 && found.first % block == 0 && found.last - found.first + 1 == found.bytes &&
        found.bytes % block == 0)
      found.block = block;
  }
  return found;
}

VerifiedStep verify_step(const capture::Tape& tape, const StepDigests& step, std::set<std::string>* nondeterministic) {
  try {
    return Judge(tape, step, nondeterministic).run();
  } catch (const std::exception& e) {
    VerifiedStep failed;
    failed.kind = VerifiedStep::kNotPlayed;
    failed.why_not = e.what();
    return failed;
  }
}

}  // namespace finitude::replay
