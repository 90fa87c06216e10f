#include "compare/record_document.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace finitude::compare {
namespace {

using nlohmann::json;

constexpr std::size_t kMostPairs = 20'000, kMostAlone = 200, kMostAbout = 500;

json finite_or_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json measured(const Measured& m, const RecordValue& a, const RecordValue& b) {
  json out = {{"arg", a.arg}, {"level", word(m.level)}, {"dtype_a", a.element.dtype}, {"dtype_b", b.element.dtype}};
  if (m.is_other_shape) {
    out["shape_a"] = a.shape;
    out["shape_b"] = b.shape;
    return out;
  }
  const Distance& d = m.distance;
  out["exact"] = d.exact;
  out["differing"] = d.differing;
  out["elements"] = d.elements;
  out["max_abs"] = finite_or_text(d.max_abs);
  out["relative"] = finite_or_text(d.relative());
  out["max_ulps"] = d.max_ulps;
  out["cosine"] = m.cosine ? json(*m.cosine) : d.same_bits ? json(1.0) : json();
  out["absmax_a"] = finite_or_text(a.health.absmax);
  out["absmax_b"] = finite_or_text(b.health.absmax);
  if (d.nan_in_one != 0) out["nan_in_one"] = d.nan_in_one;
  if (d.infinite != 0) out["infinite"] = d.infinite;
  return out;
}

json record(const Record& r) {
  json out = {{"name", r.name()}, {"op", r.op}, {"phase", r.phase}, {"call", r.call}, {"micro_batch", r.micro_batch}};
  if (r.line != 0) {
    out["file"] = r.file;
    out["line"] = r.line;
  }
  if (!r.settings.empty()) out["settings"] = r.settings;
  return out;
}

json sides_of(const RecordSides& s, std::size_t row) {
  json out = json::object();
  if (s.rows[row].a != kGap) out["a"] = record(s.a.records[s.rows[row].a]);
  if (s.rows[row].b != kGap) out["b"] = record(s.b.records[s.rows[row].b]);
  return out;
}

json parts(const RecordSides& s, std::size_t row, const std::vector<Measured>& all,
           std::vector<RecordValue> Record::*member) {
  json out = json::array();
  if (all.empty()) return out;  // of one side only, maybe
  const Record &a = s.a.records[s.rows[row].a], &b = s.b.records[s.rows[row].b];
  for (const Measured& m : all) out.push_back(measured(m, (a.*member)[m.a], (b.*member)[m.b]));
  return out;
}

json pair(const RecordSides& s, std::size_t row) {
  json out = sides_of(s, row);
  const RecordPair& p = s.pairs[row];
  out["matched_by"] = word(s.rows[row].by);
  out["level"] = word(p.out);
  out["bound"] = finite_or_text(p.bound);
  out["inputs"] = parts(s, row, p.inputs, &Record::inputs);
  out["parameters"] = parts(s, row, p.parameters, &Record::parameters);
  out["outputs"] = parts(s, row, p.outputs, &Record::outputs);
  return out;
}

}  // namespace

json record_document(const RecordSides& s, const RecordJudgement& j) {
  json out = {{"kind", "finitude diff of dumps"}, {"schema", 1}, {"a", s.name_a}, {"b", s.name_b}};
  const bool too_few = j.pairs * 2 < std::min(s.a.records.size(), s.b.records.size());
  out["verdict"] = j.has_root ? "divergence" : too_few ? "incomplete" : j.noise != 0 ? "noise" : "same";
  out["divergence"] = json();
  if (j.has_root) {
    json first = pair(s, j.first.row);
    first["kind"] = word(j.first.kind);
    first["explained_by"] = j.first.explainers;
    first["within"] = j.first.within;
    first["alone"] = json::array();
    for (const std::size_t row : j.first.others) first["alone"].push_back(sides_of(s, row));
    out["divergence"] = first;
  }
  out["noise"] = j.noise_row < s.rows.size() ? pair(s, j.noise_row) : json();
  out["further"] = json::array();
  for (const std::size_t row : j.further) out["further"].push_back(pair(s, row));
  out["counts"] = {{"records_a", s.a.records.size()},
                   {"records_b", s.b.records.size()},
                   {"pairs", j.pairs},
                   {"same", j.same},
                   {"noise", j.noise},
                   {"differ", j.differ},
                   {"unknown", j.unknown},
                   {"only_a", j.only_a},
                   {"only_b", j.only_b},
                   {"by_structure", j.by_structure},
                   {"other_dtype", j.other_dtype}};
  out["other_settings"] = json::array();
  for (const std::size_t row : j.other_settings) {
    if (out["other_settings"].size() < kMostAlone) out["other_settings"].push_back(sides_of(s, row));
  }
  out["alone"] = json::array();
  out["pairs"] = json::array();
  for (std::size_t row = 0; row < s.rows.size(); ++row) {
    if (s.rows[row].a != kGap && s.rows[row].b != kGap) {
      if (out["pairs"].size() < kMostPairs) out["pairs"].push_back(pair(s, row));
    } else if (out["alone"].size() < kMostAlone) {
      out["alone"].push_back(sides_of(s, row));
    }
  }
  out["about"] = json::array();
  for (const AboutDifference& d : s.about) {
    if (out["about"].size() < kMostAbout)
      out["about"].push_back({{"group", d.group}, {"key", d.key}, {"a", d.a}, {"b", d.b}});
  }
  out["has_values"] = !s.a.values.is_empty() && !s.b.values.is_empty();
  return out;
}

}  // namespace finitude::compare
