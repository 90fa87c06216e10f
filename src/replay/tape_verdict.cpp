#include "replay/tape_verdict.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace finitude::replay {
namespace {

using Runs = std::vector<Played>;

// Whether that outcome is said to be non-finite, of each outcome of a run.
std::vector<bool> bad_in(const Played& run) {
  std::vector<bool> bad;
  for (const PlayedOutcome& o : run.outcomes) bad.push_back(!o.got_flaws.finite());
  return bad;
}

std::vector<bool> bad_then(const Played& run) {
  std::vector<bool> bad;
  for (const PlayedOutcome& o : run.outcomes) bad.push_back(!o.expected_flaws.finite());
  return bad;
}

bool any(const std::vector<bool>& flags) { return std::find(flags.begin(), flags.end(), true) != flags.end(); }

bool is_known(const Played& run) {
  return std::all_of(run.outcomes.begin(), run.outcomes.end(),
                     [](const PlayedOutcome& o) { return o.expected_flaws.known; });
}

bool same_bits(const Played& a, const Played& b) {
  return std::equal(a.outcomes.begin(), a.outcomes.end(), b.outcomes.begin(), b.outcomes.end(),
                    [](const PlayedOutcome& x, const PlayedOutcome& y) { return x.got == y.got; });
}

bool all_agree(const Runs& runs) {
  return std::all_of(runs.begin(), runs.end(),
                     [&](const Played& run) { return run.why_not == runs[0].why_not && same_bits(run, runs[0]); });
}

std::string names_of(const Played& run, const std::vector<bool>& which) {
  constexpr std::size_t kShown = 4;
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 0; i < run.outcomes.size(); ++i) {
    if (!which[i] || ++count > kShown) continue;
    const PlayedOutcome& o = run.outcomes[i];
    text += (text.empty() ? "" : ", ") + o.kind + (o.name == o.kind ? "" : " " + o.name);
  }
  return count > kShown ? text + " and " + std::to_string(count - kShown) + " more" : text;
}

std::string headline(Verdict verdict, const Runs& runs) {
  const Played& first = runs[0];
  const std::string often = runs.size() == 1 ? "one run" : std::to_string(runs.size()) + " runs";
  switch (verdict) {
    case Verdict::kIdentical:
      return "identical";
    case Verdict::kSameClass:
      return "same class of failure (other bits, but non-finite as recorded in each of " + often + ": " +
             names_of(first, bad_then(first)) + (all_agree(runs) ? ")" : "; the bits differ from run to run)");
    case Verdict::kTransient:
      return "not reproduced: transient (finite in each of " + often + ": " + names_of(first, bad_then(first)) + ")";
    case Verdict::kOrderDependent:
      return "not reproduced: order-dependent (" + often + " give different results)";
    default:
      break;
  }
  std::string text = "not reproduced: persistent (" + often + " give the same result, which is not what was recorded";
  if (is_known(first) && bad_in(first) != bad_then(first)) {
    const std::string now = names_of(first, bad_in(first));
    text += "; non-finite: " + (now.empty() ? "nothing" : now) + " instead of " +
            (any(bad_then(first)) ? names_of(first, bad_then(first)) : "nothing");
  } else if (!is_known(first)) {
    text += "; which results were non-finite is not recorded";
  }
  return text + ")";
}

}  // namespace

bool is_decided(const Runs& runs) {
  if (runs.empty()) return false;
  const Played& first = runs[0];
  return runs.size() >= kRuns || first.identical() || !first.missing.empty() || !first.why_not.empty() ||
         first.outcomes.empty();
}

Verdict judge(const Runs& runs) {
  const Played& first = runs.at(0);
  if (!first.missing.empty()) return Verdict::kCannot;
  if (!first.why_not.empty()) return Verdict::kFailed;
  if (first.outcomes.empty()) return Verdict::kNothing;
  if (std::all_of(runs.begin(), runs.end(), [](const Played& run) { return run.identical(); }))
    return Verdict::kIdentical;
  if (!is_known(first)) return all_agree(runs) ? Verdict::kPersistent : Verdict::kOrderDependent;
  const std::vector<bool> then = bad_then(first), now = bad_in(first);
  const bool one_class = std::all_of(runs.begin(), runs.end(),
                                     [&](const Played& run) { return run.why_not.empty() && bad_in(run) == now; });
  if (!one_class) return Verdict::kOrderDependent;
  if (!any(then)) return all_agree(runs) ? Verdict::kPersistent : Verdict::kOrderDependent;
  if (now == then) return Verdict::kSameClass;
  return any(now) ? Verdict::kPersistent : Verdict::kTransient;
}

namespace {

// Which option of the command brings operators of other libraries here, by their namespaces. aten is torch's own.
std::string how_to_have(const std::vector<std::string>& missing) {
  std::set<std::string> not_allowed, not_here;
  for (const std::string& name : missing) {
    const std::string space = name.substr(0, name.find("::"));
    if (space == name || space == "aten") continue;
    (name.ends_with("(not registered here)") ? not_here : not_allowed).insert(space);
  }
  std::string text;
  for (const std::string& space : not_allowed) {
    text += "operators of " + space + " are called where that is allowed: --allow " + space +
            ", and --library FILE.so or --import MODULE where torch alone does not have them\n";
  }
  for (const std::string& space : not_here)
    text += "the library that registers " + space +
            " is loaded by --library FILE.so, a Python module by --import MODULE (finitude replay)\n";
  return text;
}

std::string report_exchanges(const std::vector<PlayedExchange>& exchanges) {
  std::size_t same = 0, other = 0, unread = 0;
  const PlayedExchange* first_other = nullptr;
  std::set<std::string> recorded;
  std::size_t taken = 0;
  for (const PlayedExchange& one : exchanges) {
    same += one.how == PlayedExchange::kSame;
    unread += one.how == PlayedExchange::kUnread;
    if (one.how == PlayedExchange::kOtherBits && other++ == 0) first_other = &one;
    if (one.how == PlayedExchange::kRecorded) {
      ++taken;
      recorded.insert(one.name + " (" + one.why + ")");
    }
  }
  const std::string all = std::to_string(exchanges.size());
  std::string text = std::to_string(exchanges.size() - taken) + " of " + all +
                     " collective operations were issued again: " + std::to_string(same) + " gave the recorded bits";
  if (first_other != nullptr) text += ", " + std::to_string(other) + " other bits, first " + first_other->name;
  if (unread != 0) text += "; what " + std::to_string(unread) + " gave is not compared, as no call read it";
  text += "\n";
  if (taken == 0) return text;
  text += std::to_string(taken) + " of " + all + " collective operations took their recorded result:";
  constexpr std::size_t kShown = 4;
  std::size_t shown = 0;
  for (const std::string& one : recorded) {
    if (++shown <= kShown) text += (shown == 1 ? " " : ", ") + one;
  }
  return text + (shown > kShown ? " and " + std::to_string(shown - kShown) + " more" : "") + "\n";
}

}  // namespace

Reported report_runs(const Runs& runs, const capture::Tape& tape) {
  Reported reported;
  const Played& first = runs.at(0);
  for (const std::string& gap : tape.gaps) reported.text += "the tape has a gap: " + gap + "\n";
  const Verdict verdict = judge(runs);
  if (verdict == Verdict::kCannot) {
    reported.text += "the step calls operators that cannot be called here:";
    for (const std::string& name : first.missing) reported.text += " " + name;
    reported.text += "\n" + how_to_have(first.missing);
    reported.code = 4;
    return reported;
  }
  reported.code = verdict == Verdict::kIdentical || verdict == Verdict::kSameClass ? 0 : 1;
  if (verdict == Verdict::kFailed) {
    reported.text += "not reproduced: " + first.why_not + "\n";
    return reported;
  }
  if (verdict == Verdict::kNothing) {
    reported.text += "replayed, but there is nothing on the tape to compare with\n";
    reported.code = 4;
    return reported;
  }
  std::size_t same = 0;
  for (const PlayedOutcome& outcome : first.outcomes) {
    same += outcome.same();
    if (!outcome.same()) reported.text += "differs: " + outcome.kind + " " + outcome.name + "\n";
  }
  char line[160];
  std::snprintf(line, sizeof line, ": %zu of %zu results have the same bits; %zu calls, %.3f ms\n", same,
                first.outcomes.size(), first.calls, first.seconds * 1e3);
  reported.text += headline(verdict, runs) + line;
  if (!first.exchanges.empty()) {
    reported.text += report_exchanges(first.exchanges);
  } else if (const std::string* calls = tape.setting("collectives"))
    reported.text += "what other ranks gave is as it was recorded (" + *calls + ")\n";
  return reported;
}

}  // namespace finitude::replay
