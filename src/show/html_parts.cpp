#include "show/html_parts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "show/printable.h"
#include "show/words.h"

namespace finitude::show {
namespace {

constexpr std::size_t kShownTensors = 32, kShownOps = 20'000;

std::string cell(std::string_view raw) { return "<td class=\"n\">" + escape(raw) + "</td>"; }

std::string real_cell(const Json& value) { return cell(known(value) ? number_text(real(value)) : "-"); }

std::string count_cell(std::uint64_t value, bool alarming) {
  return value && alarming ? "<td class=\"n bad\">" + grouped(value) + "</td>" : cell(grouped(value));
}

std::uint64_t non_finite(const Json& statistics) {
  return count(statistics, "nan") +
         std::max(count(statistics, "inf"), count(statistics, "pos_inf") + count(statistics, "neg_inf"));
}

void tensor_rows(std::string& out, const char* role, const Json& all, const Json& rows_of_birth) {
  for (std::size_t i = 0; i < std::min(all.size(), kShownTensors); ++i) {
    const Json& one = all[i];
    const std::uint64_t pos = count(one, "pos_inf"), neg = count(one, "neg_inf");
    const std::uint64_t unsigned_inf = count(one, "inf") > pos + neg ? count(one, "inf") - pos - neg : 0;
    const bool any_finite = non_finite(one) < count(one, "numel");
    const std::string rows = rows_of(one, rows_of_birth), said = text(one, "text");
    out += std::string("<tr><td>") + role + "</td><td><code>" + escape(text(one, "arg")) +
           "</code></td><td class=\"mono\">" + escape(tensor_type(one)) + "</td>" +
           (any_finite ? real_cell(at(one, "min")) + real_cell(at(one, "max")) : cell("-") + cell("-")) +
           count_cell(count(one, "nan"), true) + count_cell(pos + unsigned_inf, true) + count_cell(neg, true) +
           count_cell(count(one, "zero"), false) + count_cell(count(one, "numel"), false) + "<td>" +
           escape(rows + (rows.empty() || said.empty() ? "" : "; ") + said) + "</td></tr>\n";
  }
  if (all.size() > kShownTensors) {
    out += "<tr><td colspan=\"11\">and " + grouped(all.size() - kShownTensors) + " more</td></tr>\n";
  }
}

// All tensors of one side of an op, in few words.
std::string tensors_words(const Json& all) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 4); ++i) {
    out += (i ? "; " : "") + tensor_type(all[i]);
    for (const std::string& value : tensor_values(all[i], Json())) out += ", " + value;
  }
  return all.size() > 4 ? out + "; and " + grouped(all.size() - 4) + " more" : out;
}

}  // namespace

std::string escape(std::string_view raw) { return escape_line(printable(raw)); }

std::string escape_line(std::string_view printable_text) {
  std::string out;
  for (const char c : printable_text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string element(const char* tag, const char* kind, std::string_view raw) {
  if (raw.empty()) return {};
  const std::string name(tag), attribute = *kind ? std::string(" class=\"") + kind + "\"" : "";
  return "<" + name + attribute + ">" + escape(raw) + "</" + name + ">";
}

std::string tensor_table(const Json& inputs, const Json& outputs, const Json& rows_of_birth) {
  if (inputs.empty() && outputs.empty()) return {};
  std::string out =
      "<div class=\"wide\"><table><thead><tr><th></th><th>name</th><th>type</th><th class=\"n\">min</th><th "
      "class=\"n\">max</th>"
      "<th class=\"n\">NaN</th><th class=\"n\">Inf</th><th class=\"n\">-Inf</th><th class=\"n\">zeros</th>"
      "<th class=\"n\">values</th><th>where</th></tr></thead><tbody>\n";
  tensor_rows(out, "input", inputs, Json());
  tensor_rows(out, "output", outputs, rows_of_birth);
  return out + "</tbody></table></div>\n";
}

std::string op_table(const Json& report) {
  const Json& ops = list(at(report, "trace"), "ops");
  if (ops.empty()) return {};
  std::string out =
      "<section><h3>Ops of the step</h3>\n<div class=\"wide\"><table "
      "id=\"ops\"><thead><tr>"
      "<th class=\"n\">#</th><th>op</th><th>phase</th><th>where</th><th>inputs</th><th>outputs</th><th "
      "class=\"n\">growth</th>"
      "<th class=\"n\">micro-batch</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < std::min(ops.size(), kShownOps); ++i) {
    const Json& op = ops[i];
    std::uint64_t bad = 0;
    for (const Json& each : list(op, "inputs")) bad += non_finite(each);
    for (const Json& each : list(op, "outputs")) bad += non_finite(each);
    const std::string where = place(report, op), module = text(op, "module");
    out += (bad ? "<tr class=\"bad\">" : "<tr>") + cell(std::to_string(i)) + "<td><code>" + escape(text(op, "op")) +
           "</code></td><td>" + escape(text(op, "phase")) + "</td><td>" +
           escape(where + (module.empty() ? "" : " in " + module)) + "</td><td>" +
           escape(tensors_words(list(op, "inputs"))) + "</td><td>" + escape(tensors_words(list(op, "outputs"))) +
           "</td>" + real_cell(at(op, "growth")) +
           cell(has_count(op, "micro_batch") ? grouped(count(op, "micro_batch")) : "-") + "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  if (ops.size() > kShownOps)
    out += element("p", "soft", "and " + grouped(ops.size() - kShownOps) + " more ops in the JSON report");
  return out + "</section>\n";
}

std::string history_words(const Json& history) {
  std::string out;
  for (const auto& [key, name] : {std::pair{"loss", "loss"}, std::pair{"grad_absmax", "largest gradient"}}) {
    const Json& all = list(history, key);
    if (all.empty()) continue;
    double low = INFINITY, high = -INFINITY;
    for (const Json& value : all) {
      if (const double v = real(value); std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
    }
    const std::string range = low <= high ? number_text(low) + " to " + number_text(high) : "no finite value";
    out += element("p", "",
                   std::string(name) + " of the last " + counted(all.size(), "step") + ": " + range + ", last " +
                       number_text(real(all.back())));
  }
  return out;
}

}  // namespace finitude::show
