// The sentences about the run and its alarms.
#include "show/words.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "show/printable.h"

namespace finitude::show {
namespace {

std::string lower(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(c < 128 ? std::tolower(c) : c); });
  return word;
}

// "NaN", "Inf", "-Inf": the worst kind that statistics, or one number, hold.
std::string bad_kind(const Json& statistics) {
  if (known(statistics) && !std::isfinite(real(statistics))) return number_text(real(statistics));
  if (count(statistics, "nan") > 0) return "NaN";
  if (count(statistics, "pos_inf") > 0) return "Inf";
  if (count(statistics, "neg_inf") > 0) return "-Inf";
  return count(statistics, "inf") > 0 ? "Inf" : "not finite";
}

// A gradient that the script made finite between backward and the step: nothing is left to be counted.
bool clamped_since(const Json& bad) {
  return bad.contains("nan") && bad.contains("inf") && count(bad, "nan") == 0 && count(bad, "inf") == 0;
}

std::string sink_sentence(const Json& alarm) {
  const Json& sink = at(alarm, "sink");
  const std::string kind = text(sink, "kind"), name = text(sink, "name");
  std::string subject = kind.empty() ? "a value" : kind;
  if (kind == "loss" && (name.empty() || name == "loss"))
    subject = "loss";
  else if (!name.empty())
    subject = kind == "gradient" ? "gradient of " + name : subject + " " + name;
  std::string state = "not finite";
  if (kind == "loss") {
    state = bad_kind(at(alarm, "loss"));
  } else if (kind == "gradient") {
    for (const Json& bad : list(at(alarm, "gradients"), "bad")) {
      if (text(bad, "name") != name) continue;
      if (clamped_since(bad)) return subject + " was not finite before it was clamped";
      state = bad_kind(bad);
    }
  }
  return subject + " is " + state;
}

// What was done with the step. `action` says it; where it is missing the policy says what it represents.
std::string done_sentence(const Json& alarm) {
  std::string did = lower(text(alarm, "action"));
  if (did.empty()) did = text(alarm, "policy");
  const auto says = [&did](const char* word) { return did.find(word) != std::string::npos; };
  const bool applied_before = text(alarm, "weights") == "damaged";  // seen only in what the optimizer wrote
  if (says("undone")) return says("stop") ? " was undone and training stopped" : " was undone, training continues";
  if (says("exception")) return " ended by the script's own exception";
  if (says("appl") || says("warn")) return " was applied";
  if (says("skip") || says("left out"))
    return applied_before ? " was bad, training continues" : " skipped, training continues";
  if (says("stop") || says("rais"))
    return std::string(applied_before && !says("before the optimizer") ? " stopped after the "
                                                                       : " stopped before the ") +
           (text(alarm, "optimizer") == "manual updates" ? "update" : "optimizer");
  if (says("roll")) return " undone, back to the last good state";
  return "";
}

std::string rank_words(const Json& report, const Json& alarm) {
  const std::uint64_t ranks = count(at(report, "watched"), "ranks"), rank = count(alarm, "rank");
  const std::string host = text(alarm, "host"), place = host.empty() ? "" : ", on " + host;
  if (ranks > 1) return " (rank " + std::to_string(rank) + " of " + std::to_string(ranks) + place + ")";
  return has_count(alarm, "rank") ? " (rank " + std::to_string(rank) + ")" : "";
}

}  // namespace

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Inf" : "-Inf";
  char out[40];
  std::snprintf(out, sizeof out, "%.4g", value);
  return out;
}

std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<std::size_t>(i), 1, ',');
  return digits;
}

std::string counted(std::uint64_t value, const char* noun) {
  return grouped(value) + " " + noun + (value == 1 ? "" : "s");
}

std::string headline(const Json& report, const Json& alarm) {
  std::string line = text(alarm, "text");
  const std::string step = "step " + std::to_string(count(alarm, "step"));
  while (!line.empty() && (line.back() == '.' || line.back() == ' ')) line.pop_back();
  if (line.empty()) line = sink_sentence(alarm);
  if (line.compare(0, step.size(), step) != 0) line = step + done_sentence(alarm) + ": " + line;
  const std::string said = lower(line);
  if (count(alarm, "micro_batch") > 0 && said.find("micro-batch") == std::string::npos) {
    line += " in micro-batch " + std::to_string(count(alarm, "micro_batch"));
  }
  if (said.find("(rank") == std::string::npos) line += rank_words(report, alarm);
  line += ".";
  if (flag(alarm, "harmless")) {
    if (said.find("gradients are finite") == std::string::npos)
      line += " Gradients are finite, weights were not in danger.";
  } else if (const std::string weights = text(alarm, "weights"); !weights.empty()) {
    // That they are finite but have grown is said of clean ones. What is applied since damages them.
    const bool is_said = said.find(weights == "clean" ? "weights are" : "weights are damaged") != std::string::npos;
    if (!is_said) line += " Weights are " + weights + ".";
  }
  return line;
}

const Json& path_end(const Json& alarm) {
  const Json& births = list(alarm, "births");
  const Json& own = births.empty() ? births : at(births[0], "sink");
  return own.is_object() && !text(own, "kind").empty() ? own : at(alarm, "sink");
}

std::string outcome_sentence(const Json& report) {
  const std::string outcome = text(report, "outcome"), reason = text(report, "reason");
  if (outcome == "unwatched") {
    const std::string what = "nothing that trains was seen";
    return reason.starts_with(what) ? reason : what + (reason.empty() ? "." : ": " + reason);
  }
  const std::size_t advisories = list(report, "advisories").size(), warnings = list(report, "warnings").size();
  if (list(report, "alarms").empty()) {
    return (reason.empty() ? "no alarm" : "no alarm, " + reason) +
           (warnings ? ", " + counted(warnings, "warning") : "") +
           (advisories ? ", " + grouped(advisories) + (advisories == 1 ? " advisory" : " advisories") : "") + ".";
  }
  return counted(alarm_count(report), "alarm") + (reason.empty() ? "." : ": " + reason);
}

std::string end_sentence(const Json& report) {
  const std::string outcome = text(report, "outcome");
  const Json& under_way = at(report, "under_way");
  const std::string process = under_way.is_object() ? "process " + digits(at(under_way, "pid")) : "its process";
  if (outcome == "running") return "the run is in progress: " + process + " has written this so far";
  // Of a run that has its end a process was killed, which the outcome names.
  if (outcome == "killed" && !under_way.is_object() && !text(report, "reason").empty()) return "";
  if (outcome == "killed") return "the run was killed: " + process + " ended abnormally; this is what it had written";
  return under_way.is_object() ? "written during the run: " + process + " is still running or was killed" : "";
}

std::string watched_sentence(const Json& report) {
  const Json& watched = at(report, "watched");
  if (!watched.is_object()) return {};
  std::string line = counted(count(watched, "steps"), "step");
  if (count(watched, "optimizers") > 1) line += " of " + counted(count(watched, "optimizers"), "optimizer");
  if (count(watched, "ranks") > 1) line += " on " + counted(count(watched, "ranks"), "rank");
  if (count(watched, "backward_calls") != count(watched, "steps")) {
    line += ", " + counted(count(watched, "backward_calls"), "backward call");
  }
  line += ", " + counted(count(watched, "gradients_scanned"), "gradient") + " scanned";
  line += ", " + counted(count(watched, "scaler_skips"), "scaler skip");
  line += ", " + grouped(count(watched, "handled_by_script")) + " handled by the script";
  return line;
}

std::string gradients_sentence(const Json& alarm) {
  const Json& gradients = at(alarm, "gradients");
  const Json& bad = list(gradients, "bad");
  const std::uint64_t clean = count(gradients, "clean");
  if (bad.empty()) return clean ? "all " + grouped(clean) + " finite" : "";
  constexpr std::size_t kShown = 3;
  std::string line = grouped(bad.size()) + " of " + grouped(bad.size() + clean) + " bad:";
  for (std::size_t i = 0; i < std::min(kShown, bad.size()); ++i) {
    line += (i ? ", " : " ") + text(bad[i], "name") + " (";
    const std::uint64_t nan = count(bad[i], "nan"), inf = count(bad[i], "inf");
    if (nan) line += grouped(nan) + " NaN";
    if (inf) line += (nan ? ", " : "") + grouped(inf) + " Inf";
    if (clamped_since(bad[i])) line += "clamped since, all";
    line += " of " + grouped(count(bad[i], "numel")) + ")";
  }
  if (bad.size() > kShown) line += ", and " + grouped(bad.size() - kShown) + " more";
  return line;
}

std::string buffers_sentence(const Json& alarm) {
  constexpr std::size_t kShown = 6;
  const Json& buffers = list(alarm, "buffers");
  std::string line;
  bool all_back = true;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    all_back = all_back && flag(buffers[i], "put_back");
    if (i >= kShown) continue;
    const std::uint64_t nan = count(buffers[i], "nan"), inf = count(buffers[i], "inf");
    line += (i ? ", " : "") + text(buffers[i], "name") + " (" + (nan ? grouped(nan) + " NaN" : "") +
            (nan && inf ? ", " : "") + (inf ? grouped(inf) + " Inf" : "") + " of " +
            grouped(count(buffers[i], "numel")) + ")";
  }
  if (line.empty()) return line;
  if (buffers.size() > kShown) line += " and " + grouped(buffers.size() - kShown) + " more";
  return line + (all_back ? ": put back to what they held before the step" : ": not put back, they stay so");
}

namespace {

bool is_same_place(const Json& a, const Json& b) {
  return text(a, "optimizer") == text(b, "optimizer") && count(a, "rank") == count(b, "rank");
}

}  // namespace

bool is_repeat(const Json& report, const Json& alarm) {
  if (!has_count(alarm, "repeat_of")) return false;
  const Json& all = list(report, "alarms");
  return std::any_of(all.begin(), all.end(), [&](const Json& other) {
    return !has_count(other, "repeat_of") && count(other, "step") == count(alarm, "repeat_of") &&
           is_same_place(other, alarm);
  });
}

std::string way_back_sentence(const Json& report, const Json& alarm) {
  const Json& onset = at(alarm, "onset");
  const Json& good = at(alarm, "last_good");
  if (!onset.is_object() || !has_count(onset, "step") || is_of_cpp(report) || text(alarm, "policy") == "rollback")
    return {};
  const std::string before = "from before the onset at step " + std::to_string(count(onset, "step"));
  const std::string in_place = "--on-alarm rollback --rollback-every N goes back in the running program";
  if (!good.is_object() && count(onset, "step") == 0) return {};  // nothing is before the first step
  if (!good.is_object()) return "no checkpoint " + before + " is known; " + in_place;
  const std::string after = has_count(good, "step") ? ", of step " + std::to_string(count(good, "step")) : "";
  return "start from " + text(good, "checkpoint") + after + ", " + before +
         ", and change what led here; --resume \"COMMAND {checkpoint}\" starts it after a stop, " + in_place;
}

std::string repeats_sentence(const Json& report, const Json& alarm) {
  if (has_count(alarm, "repeat_of")) return {};
  std::string steps, last_action;
  std::uint64_t n = 0, first = 0, last = 0;
  const auto end_range = [&] {
    if (n == 0) return;
    steps += (steps.empty() ? "" : ", ") + std::to_string(first) +
             (last > first ? (last > first + 1 ? " to " : ", ") + std::to_string(last) : "");
  };
  for (const Json& other : list(report, "alarms")) {
    if (!has_count(other, "repeat_of") || count(other, "repeat_of") != count(alarm, "step") ||
        !is_same_place(other, alarm))
      continue;
    const std::uint64_t step = count(other, "step");
    if (n != 0 && step != last + 1) end_range();
    if (n == 0 || step != last + 1) first = step;
    last = step;
    last_action = lower(text(other, "action"));
    ++n;
  }
  if (n == 0) return {};
  end_range();
  std::string line =
      (n == 1 ? "step " : "steps ") + steps +
      (n == 1 ? ": taken to be the same finding" : ": taken to be the same finding, " + grouped(n) + " times") +
      ", not run again";
  if (last_action.find("stop") != std::string::npos) line += "; step " + std::to_string(last) + " stopped training";
  return line;
}

std::vector<std::string> patch_lines(const std::string& diff) {
  std::vector<std::string> lines;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) lines.back() += printable(word);
    word.clear();
  };
  constexpr std::size_t kMost = 400;
  for (std::size_t at = 0; at < diff.size() && lines.size() <= kMost; ++at) {
    if (at == 0 || diff[at - 1] == '\n') lines.emplace_back();
    const bool is_end_of_line = diff[at] == '\r' && at + 1 < diff.size() && diff[at + 1] == '\n';
    if (diff[at] == '\n' || diff[at] == ' ' || diff[at] == '\t' || is_end_of_line) {
      end_word();
      if (diff[at] != '\n') lines.back() += diff[at];
    } else {
      word += diff[at];
    }
  }
  end_word();
  return lines;
}

std::string time_sentence(const Json& cause) {
  if (!known(at(cause, "tried_seconds")) || !known(at(cause, "budget_seconds"))) return "";
  char line[96];
  std::snprintf(line, sizeof line, "whole steps took %.2g s of at most %.2g s%s", real(at(cause, "tried_seconds")),
                real(at(cause, "budget_seconds")), flag(cause, "out_of_time") ? ", then time was up" : "");
  return line;
}

std::string rerun_sentence(const Json& alarm) {
  const std::string rerun = text(alarm, "rerun"), by = text(alarm, "rerun_by"), said = text(alarm, "rerun_text");
  if (rerun.empty() || rerun == "not-run") return said;
  if (!said.empty()) return rerun + (by.empty() || by == "none" ? "" : ", by " + by) + ": " + said;
  std::string line = rerun;
  if (rerun == "persistent") line = "persistent: the step did the same again";
  if (rerun == "transient") line = "transient: the step was finite when run again";
  if (rerun == "order-dependent") line = "order-dependent: the step differs from run to run";
  if (!by.empty() && by != "none") line += ", by " + by;
  return line + (flag(alarm, "rerun_verified") ? ", loss and gradients equal bit for bit" : "");
}

std::string cause_sentence(const Json& cause) {
  if (!cause.is_object()) return {};
  const std::string kind = text(cause, "class"), said = text(cause, "text");
  if (kind == "unknown" || kind.empty()) return said.empty() ? "not settled" : said;
  return said.empty() ? kind : said + " (" + kind + ")";
}

std::string cause_tag(const Json& cause) {
  const std::string confidence = text(cause, "confidence");
  if (confidence.empty() || text(cause, "class") == "unknown") return {};
  const Json& experiments = list(cause, "experiments");
  if (experiments.empty()) return confidence;
  std::size_t confirming = 0;
  std::size_t judged = 0;  // some say without a prediction
  for (const Json& experiment : experiments) {
    judged += at(experiment, "confirms").is_boolean();
    confirming += flag(experiment, "confirms");
  }
  const std::string all = counted(judged != 0 ? judged : experiments.size(), "experiment");
  if (judged == 0) return confidence + (confidence == "proven" ? " by " : ", ") + all;
  return confidence + (confidence == "proven" ? " by " : ", confirmed by ") + grouped(confirming) + " of " + all;
}

namespace {

// Many a sentence names its line itself.
bool names(const std::string& said, const std::string& place) {
  const std::size_t at = said.find(place);
  if (at == std::string::npos || (at != 0 && said[at - 1] != ' ' && said[at - 1] != '(')) return false;
  const std::size_t end = at + place.size();
  return end == said.size() || said[end] < '0' || said[end] > '9';
}

}  // namespace

std::string fix_sentence(const Json& report, const Json& fix) {
  const std::string said = text(fix, "text"), where = place(report, fix);
  return said.empty() || where.empty() || names(said, where) ? said : said + " at " + where;
}

std::string fix_tag(const Json& fix) {
  const std::string outcome = text(fix, "outcome"), tried = text(fix, "tried");
  const std::string what = tried.empty() ? "" : tried + ": ";
  if (flag(fix, "verified"))
    return "verified on this step: " + what + (outcome.empty() ? "loss and gradients finite" : outcome);
  if (outcome.empty()) return "not tried on the whole step";
  return outcome.starts_with("not tried") ? outcome : "tried, not verified: " + what + outcome;
}

std::string drift(const Json& history, const char* key) {
  const Json& values = list(history, key);
  if (values.size() < 2) return {};
  constexpr std::size_t kShown = 6;
  double least = INFINITY;
  for (const Json& value : values) {
    const double v = std::fabs(real(value));
    if (v > 0 && v < least) least = v;
  }
  const double last = std::fabs(real(values.back()));
  if (last < 10 * least) return {};  // a NaN at the end is a drift, too
  std::string line;
  for (std::size_t i = values.size() - std::min(kShown, values.size()); i < values.size(); ++i) {
    line += (line.empty() ? "" : "  ") + number_text(real(values[i]));
  }
  return line;
}

}  // namespace finitude::show
