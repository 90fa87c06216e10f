// The report as one self-contained page of tables, for builds without the page of web/: no script, no network, nothing
// of the report unescaped.
#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "show/digest.h"
#include "show/html_parts.h"
#include "show/page.h"
#include "show/show.h"
#include "show/words.h"

#include "show_page.inc"

namespace finitude::show {
namespace {

// The longest string literal that every C++ compiler must take (ISO C++, annex B).
static_assert(std::string_view(page_report_html).size() < 65536 && std::string_view(page_report_css).size() < 65536);

constexpr std::size_t kShownAdvisories = 200, kShownBirths = 20, kShownPath = 200, kShownGradients = 200,
                      kShownExperiments = 50;

// One pass: what is put in is not looked at again.
std::string filled(std::string_view page, std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  std::string out;
  for (;;) {
    const std::size_t open = page.find("{{"), close = page.find("}}", open);
    if (open == std::string_view::npos || close == std::string_view::npos) return out += page;
    out += page.substr(0, open);
    for (const auto& [name, value] : values) {
      if (name == page.substr(open + 2, close - open - 2)) out += value;
    }
    page.remove_prefix(close + 2);
  }
}

std::string section(const char* title, const std::string& body) {
  return body.empty() ? "" : std::string("<section><h3>") + title + "</h3>\n" + body + "\n</section>\n";
}

std::string more(std::size_t all, std::size_t shown) {
  return all > shown ? element("p", "soft", "and " + grouped(all - shown) + " more in the JSON report") : "";
}

std::string birth_section(const Json& report, const Json& birth, bool culprit) {
  const Json& forward = at(birth, "forward");
  const Json& where = text(birth, "file").empty() && forward.is_object() ? forward : birth;
  std::string out = "<p>" + element("code", "bad", born_at(birth));
  if (!text(forward, "op").empty()) {
    out += " backward of " + element("code", "", text(forward, "op"));
    if (!text(forward, "text").empty()) out += ", " + element("span", "", text(forward, "text"));
  }
  out += " " + element("span", "mono", place(report, where));
  if (!text(where, "module").empty()) out += " in " + element("code", "", text(where, "module"));
  out += "</p>\n";
  if (const std::string source = text(where, "source"); !source.empty()) {
    const std::string line =
        count(where, "line") > 0 ? "<span class=\"ln\">" + std::to_string(count(where, "line")) + "</span>" : "";
    out += "<pre>" + line + escape(source) + "</pre>\n";
  }
  if (const Json& own = at(birth, "user_frame"); own.is_object()) {
    out += "<p>reached from " + element("span", "mono", place(report, own)) + " " +
           element("code", "", text(own, "source")) + "</p>\n";
  }
  if (forward.is_object() && &where != &forward &&
      text(forward, "file") + text(forward, "source") != text(birth, "file") + text(birth, "source")) {
    out += "<p>forward: " + element("span", "mono", place(report, forward)) + " " +
           element("code", "", text(forward, "source")) + "</p>\n";
  }
  out += tensor_table(list(birth, "inputs"), list(birth, "outputs"), at(birth, "rows"));
  out += element("p", "", samples_words(birth));
  std::string with;
  for (const std::string& scalar : scalars_words(birth)) with += (with.empty() ? "with " : ", ") + scalar;
  out += element("p", "mono soft", with);
  if (const Json& select = at(birth, "absorbed_by"); select.is_object()) {
    out += "<p>Its forward value was hidden by " + element("code", "warn", text(select, "op")) + " " +
           element("span", "mono", place(report, select)) + " " + element("code", "", text(select, "source")) +
           "</p>\n";
  }
  const std::string phase = text(birth, "phase");
  const std::string title =
      (culprit ? "Born in " : "Also born in ") + (phase.empty() ? "an unknown phase" : escape(phase));
  return section(title.c_str(), out);
}

std::string path_section(const Json& report, const Json& alarm) {
  const Json& path = list(alarm, "path");
  if (path.empty()) return {};
  std::string out = "<ol class=\"path\">";
  for (std::size_t i = 0; i < std::min(path.size(), kShownPath); ++i) {
    const std::string where = place(report, path[i]);
    out += "<li>" + element("code", "", text(path[i], "op")) + " " + element("span", "soft", where) + " " +
           element("span", "bad", text(path[i], "text")) + "</li>\n";
  }
  const Json& sink = path_end(alarm);
  const std::string kind = text(sink, "kind"), name = text(sink, "name");
  out += element("li", "", name.empty() || name == kind ? kind : kind + " " + name) + "</ol>";
  return section("Path to the sink", out + more(path.size(), kShownPath));
}

std::string cause_section(const Json& cause) {
  const std::string line = cause_sentence(cause);
  if (line.empty()) return {};
  const bool proven = text(cause, "confidence") == "proven";
  std::string out =
      "<p>" + escape(line) + " " + element("span", proven ? "tag good" : "tag warn", cause_tag(cause)) + "</p>\n";
  const Json& experiments = list(cause, "experiments");
  if (!experiments.empty()) {
    out +=
        "<div "
        "class=\"wide\"><table><thead><tr><th>experiment</th><th>outcome</th><th></th></tr></thead><tbody>\n";
    for (std::size_t i = 0; i < std::min(experiments.size(), kShownExperiments); ++i) {
      const Json& one = experiments[i];
      const bool judged = at(one, "confirms").is_boolean();
      out += "<tr><td>" + escape(experiment_words(one)) + "</td><td>" + escape(text(one, "outcome")) + "</td><td>" +
             (judged ? flag(one, "confirms") ? "confirms" : "does not confirm" : "") + "</td></tr>\n";
    }
    out += "</tbody></table></div>" + more(experiments.size(), kShownExperiments);
    if (const std::string time = time_sentence(cause); !time.empty()) out += element("p", "", time);
  }
  return section("Cause", out);
}

std::string gradients_section(const Json& alarm) {
  const std::string line = gradients_sentence(alarm);
  if (line.empty()) return {};
  const Json& bad = list(at(alarm, "gradients"), "bad");
  if (bad.empty()) return section("Gradients", element("p", "", line));
  std::string out = element("p", "", grouped(count(at(alarm, "gradients"), "clean")) + " others are finite");
  out +=
      "<div class=\"wide\"><table><thead><tr><th>gradient of</th><th class=\"n\">NaN</th><th "
      "class=\"n\">Inf</th><th class=\"n\">values</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < std::min(bad.size(), kShownGradients); ++i) {
    out += "<tr><td><code>" + escape(text(bad[i], "name")) + "</code></td><td class=\"n\">" +
           grouped(count(bad[i], "nan")) + "</td><td class=\"n\">" + grouped(count(bad[i], "inf")) +
           "</td><td class=\"n\">" + grouped(count(bad[i], "numel")) + "</td></tr>\n";
  }
  return section("Gradients", out + "</tbody></table></div>" + more(bad.size(), kShownGradients));
}

std::string patch(const std::string& diff) {
  std::string out;
  for (const std::string& line : patch_lines(diff)) {
    const bool has_return = line.ends_with('\r');  // as a reference: a browser makes one newline of both characters
    out += escape_line(line.substr(0, line.size() - has_return)) + (has_return ? "&#13;\n" : "\n");
  }
  return out.empty() ? out : "<pre class=\"mono\">" + out + "</pre>";
}

std::string alarm_article(const Json& report, const Json& alarm, bool titled) {
  std::string out = "<article>\n";
  if (titled) out += element("h2", "", headline(report, alarm));
  if (const std::string onset = text(at(alarm, "onset"), "text"); !onset.empty())
    out += section("Onset", element("p", "", onset));
  const Json& births = list(alarm, "births");
  for (std::size_t i = 0; i < std::min(births.size(), kShownBirths); ++i) {
    out += birth_section(report, births[i], i == 0);
    if (i == 0) out += path_section(report, alarm);
  }
  out += more(births.size(), kShownBirths);
  out += cause_section(at(alarm, "cause"));
  const Json& fix = at(alarm, "fix");
  if (const std::string line = fix_sentence(report, fix); !line.empty()) {
    out += section("Fix", "<p>" + escape(line) + " " +
                              element("span", flag(fix, "verified") ? "tag good" : "tag warn", fix_tag(fix)) + "</p>" +
                              patch(text(fix, "diff")));
  }
  out += section("Repeated", element("p", "", repeats_sentence(report, alarm)));
  out += section("Second run", element("p", "", rerun_sentence(alarm)));
  out += gradients_section(alarm);
  out += section("Buffers", element("p", "", buffers_sentence(alarm)));
  out += section("Before the alarm", history_words(at(alarm, "history")));
  if (const std::string capsule = text(alarm, "capsule"); !capsule.empty()) {
    out += section("Capsule",
                   element("p", "mono", capsule) + element("p", "mono soft", capsule_note(report, alarm).joined()));
  }
  return out + "</article>\n";
}

std::string advisory_section(const Json& report) {
  const Json& all = list(report, "advisories");
  if (all.empty()) return {};
  std::string out = "<h2>Advisories</h2>\n";
  for (std::size_t i = 0; i < std::min(all.size(), kShownAdvisories); ++i) {
    const Json& one = all[i];
    std::string kind = text(one, "kind");
    if (has_count(one, "step")) kind += ", step " + std::to_string(count(one, "step"));
    out += "<section>" + element("h3", "", kind) + element("p", "", text(one, "text"));
    const Json& births = list(one, "births");
    if (!births.empty()) out += birth_section(report, births[0], true);
    out += cause_section(at(one, "cause")) + "</section>\n";
  }
  return out + more(all.size(), kShownAdvisories);
}

std::string watched_section(const Json& report) {
  const Json& watched = at(report, "watched");
  if (!watched.is_object()) return {};
  std::string out = "<dl>";
  constexpr std::pair<const char*, const char*> kCounters[] = {{"optimizers", "optimizers"},
                                                               {"steps", "steps"},
                                                               {"backward_calls", "backward calls"},
                                                               {"gradients_scanned", "gradients scanned"},
                                                               {"scaler_skips", "scaler skips"},
                                                               {"handled_by_script", "handled by the script"},
                                                               {"ranks", "ranks"}};
  for (const auto& [key, name] : kCounters) {
    if (has_count(watched, key))
      out += std::string("<div><dt>") + name + "</dt><dd>" + grouped(count(watched, key)) + "</dd></div>";
  }
  out += "</dl>\n";
  const Json& not_watched = list(watched, "not_watched");
  for (std::size_t i = 0; i < std::min(not_watched.size(), kShownAdvisories); ++i) {
    if (not_watched[i].is_string())
      out += element("p", "soft", "not watched: " + not_watched[i].get_ref<const std::string&>());
  }
  return section("Watched", out + more(not_watched.size(), kShownAdvisories));
}

// The command and versions, as far as the report says.
std::string run_words(const Json& report) {
  std::string out;
  const Json& command = list(report, "command");
  for (std::size_t i = 0; i < std::min<std::size_t>(command.size(), 64); ++i) {
    if (command[i].is_string()) out += (i ? " " : "") + command[i].get_ref<const std::string&>().substr(0, 1024);
  }
  std::string facts = text(report, "started");
  const auto add = [&](const std::string& fact) { facts += (facts.empty() || fact.empty() ? "" : ", ") + fact; };
  if (at(report, "seconds").is_number()) add(number_text(real(at(report, "seconds"))) + " s");
  for (const char* what : {"torch", "python", "finitude"}) {
    if (!text(report, what).empty()) add(what + (" " + text(report, what)));
  }
  add(end_sentence(report));
  return element("p", "mono soft", out) + element("p", "soft", facts);
}

}  // namespace

std::string html_tables(const Json& report) {
  const Json& alarms = list(report, "alarms");
  const std::string outcome = text(report, "outcome");
  const std::string verdict = alarms.size() == 1   ? headline(report, alarms[0])
                              : report.is_object() ? outcome_sentence(report)
                                                   : "not a report";
  const bool harmless =
      std::all_of(alarms.begin(), alarms.end(), [](const Json& alarm) { return flag(alarm, "harmless"); });
  const char* tone = outcome == "clean" ? "good" : outcome == "alarm" && !harmless ? "bad" : "warn";
  std::string body = std::string("<header class=\"verdict ") + tone + "\">" + element("h1", "", verdict) +
                     run_words(report) + "</header>\n";
  for (std::size_t i = 0; i < std::min(alarms.size(), kMaxAlarms); ++i) {
    if (!is_repeat(report, alarms[i])) body += alarm_article(report, alarms[i], alarms.size() > 1);
  }
  body += more(alarms.size(), kMaxAlarms) + advisory_section(report) + watched_section(report) + op_table(report);
  return filled(page_report_html, {{"title", "finitude: " + escape(verdict)},
                                   {"style_hash", sha256_base64(page_report_css)},
                                   {"style", page_report_css},
                                   {"body", body}});
}

}  // namespace finitude::show
