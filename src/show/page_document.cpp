#include "show/page_document.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "show/keywords.h"
#include "show/printable.h"
#include "show/show.h"
#include "show/words.h"

namespace finitude::show {
namespace {

constexpr std::size_t kAdvisories = 200, kBirths = 20, kPath = 200, kGradients = 200, kExperiments = 50, kTensors = 32,
                      kOps = 20'000, kHistory = 256, kExponents = 4096, kArguments = 64, kWarnings = 200;

Json shown(std::string_view raw) { return printable(raw); }
Json shown(const Json& object, const char* key) { return printable(text(object, key)); }

// A number, or "NaN", "Inf", "-Inf"; null where it is not known.
Json number(const Json& value) {
  if (!known(value)) return nullptr;
  const double v = real(value);
  return std::isfinite(v) ? Json(v) : Json(number_text(v));
}

// {"items": the first of them, each as `made` makes it, "more": how many are left}
template <typename Made>
Json bounded(const Json& all, std::size_t most, const Made& made) {
  Json items = Json::array();
  for (std::size_t i = 0; i < std::min(all.size(), most); ++i) items.push_back(made(all[i]));
  return {{"items", std::move(items)}, {"more", all.size() - std::min(all.size(), most)}};
}

Json exponents(const Json& statistics) {
  const Json& all = at(statistics, "exponents");
  const Json& counts = list(all, "counts");
  if (!at(all, "first").is_number_integer() || !at(all, "counts").is_array() || counts.size() > kExponents) {
    return nullptr;
  }
  Json numbers = Json::array();
  for (const Json& one : counts) {
    if (!one.is_number_integer() || one < 0) return nullptr;
    numbers.push_back(one);
  }
  return {{"first", all["first"]}, {"counts", std::move(numbers)}};
}

Json tensor(const Json& one, const Json& rows_of_birth) {
  const std::uint64_t nan = count(one, "nan"), pos = count(one, "pos_inf"), neg = count(one, "neg_inf");
  const std::uint64_t inf = std::max(count(one, "inf"), pos + neg);
  const bool any_finite = nan + inf < count(one, "numel");
  Json values = Json::array();
  for (const std::string& value : tensor_values(one, rows_of_birth)) values.push_back(shown(value));
  return {{"name", shown(one, "arg")},
          {"type", shown(tensor_type(one))},
          {"dtype", shown(one, "dtype")},
          {"values", std::move(values)},
          {"min", any_finite ? number(at(one, "min")) : Json()},
          {"max", any_finite ? number(at(one, "max")) : Json()},
          {"absmax", any_finite ? number(at(one, "absmax")) : Json()},
          {"nan", nan},
          {"inf", inf - neg},  // where signs are not known, of either
          {"negInf", neg},
          {"zero", count(one, "zero")},
          {"numel", count(one, "numel")},
          {"rows", shown(rows_of(one, rows_of_birth))},
          {"exponents", exponents(one)}};
}

Json tensors(const Json& all, const Json& rows_of_birth) {
  return bounded(all, kTensors, [&](const Json& one) { return tensor(one, rows_of_birth); });
}

Json located(const Json& report, const Json& where) {
  if (!where.is_object()) return nullptr;
  return {{"op", shown(where, "op")},         {"place", shown(place(report, where))}, {"line", count(where, "line")},
          {"source", shown(where, "source")}, {"module", shown(where, "module")},     {"text", shown(where, "text")}};
}

// The lines around that of a birth, blanks kept; null where its own is not among them.
Json around(const Json& birth) {
  const Json& all = at(birth, "around");
  Json lines = Json::array();
  for (const std::string& line : patch_lines(text(all, "source"))) lines.push_back(line);
  const std::uint64_t first = count(all, "first"), own = count(birth, "line");
  if (own < first || own - first >= lines.size()) return nullptr;
  const auto& line = lines[own - first].get_ref<const std::string&>();
  if (line.find(printable(text(birth, "source"))) == std::string::npos) return nullptr;
  return {{"first", first}, {"lines", std::move(lines)}};
}

Json birth(const Json& report, const Json& one) {
  const Json& forward = at(one, "forward");
  const bool own_place = !text(one, "file").empty() || !forward.is_object();
  const bool elsewhere = own_place && forward.is_object() &&
                         text(forward, "file") + text(forward, "source") != text(one, "file") + text(one, "source");
  Json scalars = Json::array();
  for (const std::string& scalar : scalars_words(one)) scalars.push_back(shown(scalar));
  const std::string phase = text(one, "phase");
  return {{"phase", shown(phase.empty() ? "an unknown phase" : phase)},
          {"bornAt", shown(born_at(one))},
          {"where", located(report, own_place ? one : forward)},
          {"around", own_place ? around(one) : Json()},
          {"backwardOf", shown(forward, "op")},
          {"backwardText", shown(forward, "text")},
          {"forward", elsewhere ? located(report, forward) : Json()},
          {"userFrame", located(report, at(one, "user_frame"))},
          {"absorbedBy", located(report, at(one, "absorbed_by"))},
          {"scalars", std::move(scalars)},
          {"samples", shown(samples_words(one))},
          {"inputs", tensors(list(one, "inputs"), Json())},
          {"outputs", tensors(list(one, "outputs"), at(one, "rows"))}};
}

Json experiment(const Json& one) {
  const Json& confirms = at(one, "confirms");
  return {{"name", shown(experiment_words(one))},
          {"outcome", shown(one, "outcome")},
          {"confirms", confirms.is_boolean() ? confirms : Json()}};
}

Json cause(const Json& one) {
  const std::string line = cause_sentence(one);
  if (line.empty()) return nullptr;
  Json onsets = Json::array();
  for (const Json& onset : list(one, "onsets")) {
    if (onsets.size() == 8) break;
    onsets.push_back({{"quantity", shown(onset, "quantity")}, {"steps", count(onset, "steps")}});
  }
  return {{"text", shown(line)},
          {"tag", shown(cause_tag(one))},
          {"proven", text(one, "confidence") == "proven"},
          {"experiments", bounded(list(one, "experiments"), kExperiments, experiment)},
          {"time", shown(time_sentence(one))},
          {"onsets", std::move(onsets)}};
}

Json fix(const Json& report, const Json& one) {
  std::string line = fix_sentence(report, one);
  if (line.empty()) return nullptr;
  // The tag says what was tried, and what came of it.
  const std::string tried = "; tried: " + text(one, "tried");
  if (const std::size_t at = line.find(tried); at != std::string::npos) line.erase(at, tried.size());
  Json diff = Json::array();
  for (const std::string& each : patch_lines(text(one, "diff"))) diff.push_back(each);  // printable, blanks kept
  return {{"text", shown(line)},
          {"tag", shown(fix_tag(one))},
          {"verified", flag(one, "verified")},
          {"diff", std::move(diff)}};
}

Json gradients(const Json& alarm) {
  const std::string line = gradients_sentence(alarm);
  if (line.empty()) return nullptr;
  const Json& all = at(alarm, "gradients");
  const auto made = [](const Json& one) -> Json {
    return {{"name", shown(one, "name")},
            {"nan", count(one, "nan")},
            {"inf", count(one, "inf")},
            {"numel", count(one, "numel")}};
  };
  return {{"text", shown(line)}, {"bad", bounded(list(all, "bad"), kGradients, made)}, {"clean", count(all, "clean")}};
}

// The last steps before the alarm, oldest first; null where nothing is known of them.
Json series(const Json& history, const char* key) {
  const Json& all = list(history, key);
  Json values = Json::array();
  for (std::size_t i = all.size() - std::min(all.size(), kHistory); i < all.size(); ++i)
    values.push_back(number(all[i]));
  return values;
}

std::string sink_words(const Json& alarm) {
  const Json& sink = path_end(alarm);
  const std::string kind = text(sink, "kind"), name = text(sink, "name");
  if (kind == "gradient" && !name.empty()) return "gradient of " + name;
  return name.empty() || name == kind ? kind : kind + " " + name;
}

Json story(const Json& report, const Json& alarm) {
  const Json& history = at(alarm, "history");
  const std::string capsule = text(alarm, "capsule");
  const auto on_path = [&](const Json& one) { return located(report, one); };
  return {{"step", count(alarm, "step")},
          {"title", shown(headline(report, alarm))},
          {"onset", shown(at(alarm, "onset"), "text")},
          {"wayBack", shown(in_words_of(report, way_back_sentence(report, alarm)))},
          {"harmless", flag(alarm, "harmless")},
          {"cause", cause(at(alarm, "cause"))},
          {"fix", fix(report, at(alarm, "fix"))},
          {"births", bounded(list(alarm, "births"), kBirths, [&](const Json& one) { return birth(report, one); })},
          {"path", bounded(list(alarm, "path"), kPath, on_path)},
          {"sink", shown(sink_words(alarm))},
          {"repeats", shown(repeats_sentence(report, alarm))},
          {"rerun", shown(rerun_sentence(alarm))},
          {"gradients", gradients(alarm)},
          {"buffers", shown(buffers_sentence(alarm))},
          {"loss", series(history, "loss")},
          {"gradient", series(history, "grad_absmax")},
          {"capsule", shown(capsule)},
          {"capsuleNote", capsule.empty() ? Json("") : shown(capsule_note(report, alarm).joined())}};
}

Json advisory(const Json& report, const Json& one) {
  std::string kind = text(one, "kind");
  if (has_count(one, "step")) kind += ", step " + std::to_string(count(one, "step"));
  const Json& births = list(one, "births");
  return {{"title", shown(kind)},
          {"text", shown(one, "text")},
          {"birth", births.empty() ? Json() : birth(report, births[0])},
          {"cause", cause(at(one, "cause"))}};
}

Json warning(const Json& one) {
  const std::string name = text(one, "name"), step = std::to_string(count(one, "step"));
  return {{"title", shown(text(one, "what") + (name.empty() ? "" : " of " + name) + ", step " + step)},
          {"text", shown(one, "text")}};
}

Json operation(const Json& report, const Json& one) {
  const auto side = [](const Json& all) {
    std::string out;
    for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 4); ++i) {
      out += (i ? "; " : "") + tensor_type(all[i]);
      for (const std::string& value : tensor_values(all[i], Json())) out += ", " + value;
    }
    return shown(all.size() > 4 ? out + "; and " + grouped(all.size() - 4) + " more" : out);
  };
  const auto is_bad = [](const Json& statistics) {
    return count(statistics, "nan") + count(statistics, "inf") + count(statistics, "pos_inf") +
               count(statistics, "neg_inf") !=
           0;
  };
  const Json &inputs = list(one, "inputs"), &outputs = list(one, "outputs");
  const std::string where = place(report, one), module = text(one, "module");
  return {{"op", shown(one, "op")},
          {"phase", shown(one, "phase")},
          {"where", shown(where + (module.empty() ? "" : " in " + module))},
          {"inputs", side(inputs)},
          {"outputs", side(outputs)},
          {"growth", number(at(one, "growth"))},
          {"microBatch", has_count(one, "micro_batch") ? Json(count(one, "micro_batch")) : Json()},
          {"bad",
           std::any_of(inputs.begin(), inputs.end(), is_bad) || std::any_of(outputs.begin(), outputs.end(), is_bad)}};
}

Json watched(const Json& report) {
  const Json& all = at(report, "watched");
  constexpr std::pair<const char*, const char*> kCounters[] = {{"steps", "steps"},
                                                               {"optimizers", "optimizers"},
                                                               {"backward_calls", "backward calls"},
                                                               {"gradients_scanned", "gradients scanned"},
                                                               {"scaler_skips", "scaler skips"},
                                                               {"handled_by_script", "handled by the script"},
                                                               {"ranks", "ranks"}};
  Json counters = Json::array();
  for (const auto& [key, name] : kCounters) {
    if (has_count(all, key)) counters.push_back({{"name", name}, {"value", grouped(count(all, key))}});
  }
  const auto made = [](const Json& one) {
    return shown(one.is_string() ? one.get_ref<const std::string&>().substr(0, 4096) : std::string());
  };
  return {{"counters", std::move(counters)}, {"notWatched", bounded(list(all, "not_watched"), kAdvisories, made)}};
}

// Command, versions and times, as far as the report says.
Json environment(const Json& report) {
  std::string command;
  const Json& words = list(report, "command");
  for (std::size_t i = 0; i < std::min(words.size(), kArguments); ++i) {
    if (words[i].is_string()) command += (i ? " " : "") + words[i].get_ref<const std::string&>().substr(0, 1024);
  }
  Json out = Json::array();
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) out.push_back({{"name", name}, {"value", shown(value)}});
  };
  add("command", command);
  add("script", text(report, "script"));
  add("started", text(report, "started"));
  if (known(at(report, "seconds"))) add("duration", number_text(real(at(report, "seconds"))) + " s");
  for (const char* what : {"torch", "python", "finitude"}) add(what, text(report, what));
  return out;
}

}  // namespace

Json page_document(const Json& report) {
  const Json& alarms = list(report, "alarms");
  const std::string outcome = text(report, "outcome");
  Json stories = Json::array();
  std::size_t more = 0;
  bool harmless = true;
  for (const Json& alarm : alarms) {
    harmless = harmless && flag(alarm, "harmless");
    if (is_repeat(report, alarm)) continue;
    if (stories.size() < kMaxAlarms)
      stories.push_back(story(report, alarm));
    else
      ++more;
  }
  const std::string title = alarms.size() == 1   ? headline(report, alarms[0])
                            : report.is_object() ? outcome_sentence(report)
                                                 : "not a report";
  return {{"title", shown(title)},
          {"tone", outcome == "clean"                ? "good"
                   : outcome == "alarm" && !harmless ? "bad"
                                                     : "warn"},
          {"end", shown(end_sentence(report))},
          {"stories", {{"items", std::move(stories)}, {"more", more}}},
          {"warnings", bounded(list(report, "warnings"), kWarnings, warning)},
          {"advisories",
           bounded(list(report, "advisories"), kAdvisories, [&](const Json& one) { return advisory(report, one); })},
          {"environment", environment(report)},
          {"watched", watched(report)},
          {"operations",
           bounded(list(at(report, "trace"), "ops"), kOps, [&](const Json& one) { return operation(report, one); })}};
}

}  // namespace finitude::show
