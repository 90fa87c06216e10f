#include "replay/core_votes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace finitude::replay {
namespace {

using Bits = std::vector<std::uint64_t>;

// What it gives in more than half of its plays.
std::optional<Bits> usual_bits(const CorePlays& core) {
  std::map<Bits, std::size_t> often;
  for (const CorePlay& play : core.plays) {
    if (play.failure.empty() && ++often[play.checksums] * 2 > core.plays.size()) return play.checksums;
  }
  return std::nullopt;
}

std::string names_of_some(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more" : text;
}

std::string number_of(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

class CoreVote {
 public:
  CoreVote(const std::vector<CorePlays>& cores, const CoreTask& task) : task_(task) {
    for (const CorePlays& core : cores) {
      const bool failed =
          std::any_of(core.plays.begin(), core.plays.end(), [](const CorePlay& play) { return !play.failure.empty(); });
      if (core.plays.size() < task.times && !failed) missing_.push_back(missing(core));
      if (!core.plays.empty()) cores_.push_back(&core);
    }
  }

  Reported run() {
    if (cores_.empty()) return {4, "no " + task_.kind + " has played the step\n"};
    if (const std::string why = all_failed(); !why.empty()) return {4, "the step cannot be played: " + why + "\n"};
    std::map<Bits, std::vector<std::string>> groups;  // by the bits that they usually give
    for (const CorePlays* core : cores_) {
      if (const auto bits = usual_bits(*core)) groups[*bits].push_back(core->name);
    }
    if (groups.empty())
      return ended({4, "no " + task_.kind +
                           " gives the same bits in more than half of its plays: the step itself is not deterministic, "
                           "so it says nothing of a " +
                           task_.kind + "\n"});
    for (const auto& [bits, names] : groups) {
      if (names.size() * 2 > cores_.size()) return ended(against(bits));
    }
    return ended(no_majority(groups));
  }

 private:
  std::string missing(const CorePlays& core) const {
    return core.name + " (" + std::to_string(core.plays.size()) + " of " + number_of(task_.times, "play") + ")";
  }

  std::string all_failed() const {
    std::string why;
    for (const CorePlays* core : cores_) {
      for (const CorePlay& play : core->plays) {
        if (play.failure.empty()) return "";
        if (why.empty()) why = play.failure;
      }
    }
    return why;
  }

  Reported ended(Reported reported) const {
    if (missing_.empty()) return reported;
    reported.text += "not played to the end: " + names_of_some(missing_) + "\n";
    if (reported.code == 0) reported.code = 4;
    return reported;
  }

  // Of the results those that differ, in their order.
  std::vector<std::string> differing(const Bits& right, const Bits& bits) const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < task_.results.size(); ++i) {
      if (i >= right.size() || i >= bits.size() || right[i] != bits[i]) names.push_back(task_.results[i]);
    }
    return names;
  }

  // A line of one that has other bits in some play; empty: it has not.
  std::string odd(const CorePlays& core, const Bits& right) const {
    std::set<std::string> differ;
    std::size_t differs = 0, failed = 0;
    std::string why;
    for (const CorePlay& play : core.plays) {
      if (!play.failure.empty()) {
        ++failed;
        if (why.empty()) why = play.failure;
      } else if (play.checksums != right) {
        ++differs;
        for (const std::string& name : differing(right, play.checksums)) differ.insert(name);
      }
    }
    const std::string of = " of " + number_of(core.plays.size(), "play");
    std::string text;
    if (differs > 0) {
      std::vector<std::string> names;
      for (const std::string& name : task_.results) {
        if (differ.contains(name)) names.push_back(name);
      }
      text = names_of_some(names) + (names.size() == 1 ? " differs in " : " differ in ") + std::to_string(differs) + of;
    }
    if (failed > 0) text += (text.empty() ? "" : ", and ") + std::to_string(failed) + of + " failed: " + why;
    return text.empty() ? "" : core.name + ": " + text;
  }

  std::string as_recorded(const Bits& bits) const {
    return bits == task_.recorded ? ", as in the recorded run"
                                  : "; not those of the recorded run, which may have added in another order";
  }

  Reported against(const Bits& right) const {
    std::vector<std::string> lines;
    for (const CorePlays* core : cores_) {
      if (std::string line = odd(*core, right); !line.empty()) lines.push_back(std::move(line));
    }
    const std::size_t alike = cores_.size() - lines.size();
    const std::string same = number_of(task_.results.size(), "result") + " with the same bits in " +
                             (alike == 1 ? "its " : "each of their ") + number_of(task_.times, "play") +
                             as_recorded(right);
    if (lines.empty() && cores_.size() == 1)
      return {0, cores_[0]->name + " alone: " + same + ". There is no other " + task_.kind + " to compare it with\n"};
    if (lines.empty()) return {0, "all " + number_of(alike, task_.kind) + " agree: " + same + "\n"};
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    text += alike == 0 ? "no " + task_.kind + " is free of it\n"
                       : "the other " + number_of(alike, task_.kind) + (alike == 1 ? ": " : " agree: ") + same + "\n";
    return {1, text};
  }

  Reported no_majority(const std::map<Bits, std::vector<std::string>>& groups) const {
    std::vector<const std::pair<const Bits, std::vector<std::string>>*> ordered;
    for (const auto& group : groups) ordered.push_back(&group);
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const auto* a, const auto* b) { return a->second.size() > b->second.size(); });
    std::string text = "the " + task_.kind + "s differ, and no bits have a majority: which are right cannot be said\n";
    for (const auto* group : ordered) {
      text += "  " + names_of_some(group->second) + (group->second.size() == 1 ? ": " : " agree: ");
      text += group == ordered.front() ? "compared with below"
                                       : names_of_some(differing(ordered.front()->first, group->first)) +
                                             " differ from " + ordered.front()->second.front();
      text += (group->first == task_.recorded ? " (the bits of the recorded run)\n" : "\n");
    }
    for (const CorePlays* core : cores_) {
      if (!usual_bits(*core)) text += "  " + core->name + ": no bits in more than half of its plays\n";
    }
    return {1, text};
  }

  const CoreTask& task_;
  std::vector<const CorePlays*> cores_;  // with a play
  std::vector<std::string> missing_;
};

}  // namespace

Reported judge_cores(const std::vector<CorePlays>& cores, const CoreTask& task) { return CoreVote(cores, task).run(); }

}  // namespace finitude::replay
