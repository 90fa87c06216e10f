#include "show/growth_table.h"

#include <algorithm>
#include <cmath>

#include "compare/record_growth.h"
#include "show/layout.h"
#include "show/words.h"

namespace finitude::show {
namespace {

constexpr std::size_t kMostInDocument = 10'000, kShownRecords = 20, kShownModules = 60;

std::string padded(std::string text, std::size_t width, bool to_right = false) {
  if (text.size() >= width) return text;
  return to_right ? std::string(width - text.size(), ' ') + text : text + std::string(width - text.size(), ' ');
}

Json values_line(const std::vector<compare::RecordValue>& values) {
  Json all = Json::array();
  for (const compare::RecordValue& v : values) {
    all.push_back({{"arg", v.arg},
                   {"shape", v.shape},
                   {"dtype", v.element.dtype},
                   {"nan", v.health.nan},
                   {"inf", v.health.inf()},
                   {"numel", v.health.numel},
                   {"min", v.health.min},
                   {"max", v.health.max},
                   {"absmax", v.health.absmax},
                   {"sum_sq", v.health.sum_sq}});
    if (!v.checksum.empty()) all.back()["checksum"] = v.checksum;
  }
  return all;
}

std::string growth_text(const Json& one) {
  if (flag(one, "born")) return "NaN/Inf";
  const double ratio = real(at(one, "growth"));
  return ratio > 0 ? number_text(ratio) : "-";
}

}  // namespace

nlohmann::json growth_document(const std::vector<compare::Record>& records) {
  const std::vector<compare::Growth> growth = compare::ranked_growth(records);
  Json document = {{"kind", "growth of a dump"}, {"schema", 1}, {"records", Json::array()}, {"modules", Json::array()}};
  for (const compare::Growth& one : growth) {
    if (document["records"].size() >= kMostInDocument) break;
    const compare::Record& record = records[one.record];
    document["records"].push_back({{"name", record.module},
                                   {"op", record.op},
                                   {"module", record.path},
                                   {"phase", record.phase},
                                   {"call", record.call},
                                   {"file", record.file},
                                   {"line", record.line},
                                   {"growth", one.ratio},
                                   {"absmax_in", one.in},
                                   {"absmax_out", one.out},
                                   {"born", one.is_born},
                                   {"non_finite", one.is_broken}});
  }
  for (const compare::ModuleGrowth& module : compare::module_growth(records, growth)) {
    if (document["modules"].size() >= kMostInDocument) break;
    document["modules"].push_back({{"name", module.name},
                                   {"depth", module.depth},
                                   {"records", module.records},
                                   {"growth", module.ratio},
                                   {"absmax_out", module.out},
                                   {"non_finite", module.is_broken}});
  }
  document["count"] = growth.size();
  return document;
}

std::string growth_table(const nlohmann::json& document, const TerminalOptions& options) {
  Layout page({options.colour, 0, options.unicode});  // rows are not wrapped
  const auto row = [&](const Json& one, const std::string& name, const std::string& rest) {
    const Tone tone = flag(one, "born") || flag(one, "non_finite") ? Tone::kBad : Tone::kPlain;
    page.line("", Tone::kPlain, {{padded(growth_text(one), 10, true) + "  " + name + rest, tone}}, 0);
  };
  page.line("    growth  record", Tone::kStrong, {}, 0);
  const Json& records = list(document, "records");
  for (std::size_t i = 0; i < std::min(records.size(), kShownRecords); ++i) {
    const Json& one = records[i];
    const std::string op = text(one, "op"), name = text(one, "name"), file = text(one, "file");
    std::string rest = name == op ? "" : " (" + op + ")";
    if (count(one, "call") != 0) rest += " call " + digits(at(one, "call"));
    rest += " " + text(one, "phase") + "  " + number_text(real(at(one, "absmax_in"))) + " -> " +
            (flag(one, "non_finite") ? "NaN or Inf" : number_text(real(at(one, "absmax_out"))));
    if (!file.empty()) rest += "  " + file.substr(file.rfind('/') + 1) + ":" + digits(at(one, "line"));
    row(one, name, rest);
  }
  if (records.size() > kShownRecords)
    page.line("", Tone::kDim,
              {{"            and " + grouped(count(document, "count") - kShownRecords) + " more", Tone::kDim}}, 0);
  const Json& modules = list(document, "modules");
  if (modules.empty()) return page.take();
  page.blank();
  page.line("   largest  module", Tone::kStrong, {}, 0);
  for (std::size_t i = 0; i < std::min(modules.size(), kShownModules); ++i) {
    const Json& one = modules[i];
    const std::string name = text(one, "name");
    const std::size_t dot = name.rfind('.');
    row(one,
        std::string(2 * std::min<std::size_t>(count(one, "depth"), 20), ' ') +
            (dot == std::string::npos ? name : name.substr(dot + 1)),
        "  up to " + number_text(real(at(one, "absmax_out"))));
  }
  if (modules.size() > kShownModules)
    page.line("", Tone::kDim, {{"            and " + grouped(modules.size() - kShownModules) + " more", Tone::kDim}},
              0);
  return page.take();
}

nlohmann::json record_line(const compare::Record& record) {
  Json line = {{"op", record.op},
               {"module", record.path},
               {"phase", record.phase},
               {"call", record.call},
               {"file", record.file},
               {"line", record.line},
               {"inputs", values_line(record.inputs)},
               {"outputs", values_line(record.outputs)}};
  if (!record.parameters.empty()) line["parameters"] = values_line(record.parameters);
  return line;
}

}  // namespace finitude::show
