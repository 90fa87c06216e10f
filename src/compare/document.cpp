#include "compare/document.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "compare/arguments.h"

namespace finitude::compare {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxListed = 64, kMaxCalls = 16;

json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json tensor(const Tensor& t) {
  json out = {{"dtype", t.element.dtype}, {"shape", t.shape}};
  if (!t.arg.empty()) out["arg"] = t.arg;
  if (!t.name.empty()) out["name"] = t.name;
  return out;
}

json distance(const Distance& d) {
  json out = {{"exact", d.exact},
              {"dtype", info(d.number).name},
              {"elements", d.elements},
              {"differing", d.differing},
              {"max_ulps", d.max_ulps},
              {"max_abs", number(d.max_abs)},
              {"max_rel", number(d.max_rel)},
              {"relative", number(d.relative())}};
  if (d.nan_in_one != 0) out["nan_in_one"] = d.nan_in_one;
  if (d.nan_in_both != 0) out["nan_in_both"] = d.nan_in_both;
  if (d.infinite != 0) out["infinite"] = d.infinite;
  if (d.worst >= 0) out["worst"] = {{"index", d.worst}, {"a", number(d.a)}, {"b", number(d.b)}};
  if (!d.rows.empty()) out["rows"] = d.rows;
  return out;
}

json call(const Run& run, std::uint32_t index) {
  const Call& c = run.calls[index];
  json out = {{"index", index}, {"op", c.op}};
  if (!c.overload.empty()) out["overload"] = c.overload;
  if (!c.file.empty()) {
    out["file"] = c.file;
    out["line"] = c.line;
    if (c.of_backward) out["backward"] = true;
  }
  if (!c.source.empty()) out["source"] = c.source;
  if (!c.module.empty()) out["module"] = c.module;
  for (const auto& [key, side] : {std::pair("inputs", &c.inputs), std::pair("outputs", &c.outputs)}) {
    out[key] = json::array();
    for (const Tensor& t : *side) {
      if (out[key].size() < kMaxCalls) out[key].push_back(tensor(t));
    }
  }
  return out;
}

// None where it is behind all rows: a result that no call made, but that was there before.
json row(const Sides& s, std::size_t r) {
  json out = json::object();
  if (r >= s.rows.size()) return out;
  if (s.rows[r].a != kGap) out["a"] = call(s.a, s.rows[r].a);
  if (s.rows[r].b != kGap) out["b"] = call(s.b, s.rows[r].b);
  return out;
}

std::string source_word(const Sides& s, const Root& root) {
  if (root.kind != Root::kInput) return "";
  if (root.of.name.empty()) return "data";
  return root.of.name.substr(0, root.of.name.find(' '));
}

// Of the calls that one side has alone the first, of those that part in their draws the first draw.
std::uint32_t first_of(const Sides& s, const Root& r, bool of_a) {
  for (const std::size_t row : r.others) {
    const std::uint32_t at = of_a ? s.rows[row].a : s.rows[row].b;
    if (at != kGap && (r.kind != Root::kRandom || (of_a ? s.a : s.b).calls[at].random)) return at;
  }
  return kGap;
}

// Where it stood on the two sides as the numbers were drawn.
const char* generator(const Sides& s, const Root& r) {
  const bool both =
      r.row < s.rows.size() && s.rows[r.row].a != kGap && s.rows[r.row].b != kGap && s.a.calls[s.rows[r.row].a].random;
  const std::uint32_t a = both ? s.rows[r.row].a : first_of(s, r, true),
                      b = both ? s.rows[r.row].b : first_of(s, r, false);
  if (a == kGap || b == kGap || s.a.calls[a].random_state == 0 || s.b.calls[b].random_state == 0) return "unknown";
  return r.elsewhere ? "elsewhere" : "same";
}

json root(const Sides& s, const Root& r) {
  json out = {
      {"kind", word(r.kind)}, {"level", word(r.level)}, {"distance", distance(r.distance)}, {"bound", number(r.bound)}};
  out["at"] = row(s, r.row);
  if (r.seen_at != r.row && r.seen_at < s.rows.size()) out["seen_at"] = row(s, r.seen_at);
  if (!r.arguments.empty()) {
    out["arguments"] = json::array();
    for (const auto& [x, y] : r.arguments) out["arguments"].push_back({{"arg", x.arg}, {"a", x.text}, {"b", y.text}});
  }
  if (r.kind == Root::kRandom) out["generator"] = generator(s, r);
  if (!r.others.empty()) {
    json only_a = json::array(), only_b = json::array();
    for (const std::size_t at : r.others) {
      if (s.rows[at].a != kGap && only_a.size() < kMaxCalls) only_a.push_back(call(s.a, s.rows[at].a));
      if (s.rows[at].b != kGap && only_b.size() < kMaxCalls) only_b.push_back(call(s.b, s.rows[at].b));
    }
    // The draws themselves, where each side has its own.
    if (r.kind == Root::kOperators || r.row >= s.rows.size() || s.rows[r.row].a == kGap || s.rows[r.row].b == kGap) {
      out["at"] = json::object();
      if (const auto at = first_of(s, r, true); at != kGap) out["at"]["a"] = call(s.a, at);
      if (const auto at = first_of(s, r, false); at != kGap) out["at"]["b"] = call(s.b, at);
    }
    out["only_a"] = only_a;
    out["only_b"] = only_b;
  }
  if (r.kind == Root::kInput) {
    out["input"] = tensor(r.of);
    out["source"] = source_word(s, r);
  }
  // Its values on either side, where they came together again on equal inputs.
  if (r.row < s.pairs.size() && s.rows[r.row].a != kGap && s.rows[r.row].b != kGap && r.kind != Root::kOperators) {
    json inputs = json::array();
    for (const Distance& d : s.pairs[r.row].inputs) inputs.push_back(distance(d));
    if (inputs.size() > kMaxCalls) inputs = json::array();
    out["inputs"] = inputs;
  }
  return out;
}

// Stretches of calls that one side has alone, and whether anything came of them.
json stretches(const Sides& s, const Judgement& j, const Unanswered& u) {
  json out = json::array();
  for (std::size_t r = 0; r < s.rows.size();) {
    if (s.rows[r].a != kGap && s.rows[r].b != kGap) {
      ++r;
      continue;
    }
    json only_a = json::array(), only_b = json::array();
    std::size_t in_a = 0, in_b = 0;
    Level effect = Level::kSame;
    bool open = false;
    for (; r < s.rows.size() && (s.rows[r].a == kGap || s.rows[r].b == kGap); ++r) {
      open |= std::binary_search(u.rows.begin(), u.rows.end(), r);
      for (const Root& root : j.roots) {
        if (std::find(root.others.begin(), root.others.end(), r) != root.others.end())
          effect = std::max(effect, root.level);
      }
      if (s.rows[r].a != kGap && ++in_a <= kMaxCalls) only_a.push_back(call(s.a, s.rows[r].a));
      if (s.rows[r].b != kGap && ++in_b <= kMaxCalls) only_b.push_back(call(s.b, s.rows[r].b));
    }
    if (out.size() < kMaxListed)
      out.push_back({{"calls_a", in_a},
                     {"calls_b", in_b},
                     {"only_a", only_a},
                     {"only_b", only_b},
                     {"effect", word(open && effect != Level::kDiffers ? Level::kUnknown : effect)}});
  }
  return out;
}

// Memory from before the step that both read: where it differs.
json inputs(const Sides& s) {
  json out = json::array();
  std::set<std::pair<std::uint32_t, std::uint32_t>> reported;
  std::size_t compared = 0;
  for (std::size_t r = 0; r < s.rows.size(); ++r) {
    if (s.rows[r].a == kGap || s.rows[r].b == kGap) continue;
    const Call &ca = s.a.calls[s.rows[r].a], &cb = s.b.calls[s.rows[r].b];
    for (std::size_t k = 0; k < std::min({ca.inputs.size(), cb.inputs.size(), s.pairs[r].inputs.size()}); ++k) {
      const Tensor &ta = ca.inputs[k], &tb = cb.inputs[k];
      if (ta.source != kNone || tb.source != kNone || ta.storage == kNone) continue;
      if (!reported.insert({ta.storage, tb.storage}).second) continue;
      ++compared;
      const Distance& d = s.pairs[r].inputs[k];
      const bool form = ta.shape != tb.shape || ta.element.dtype != tb.element.dtype;
      if (!form && (!d.known || d.same_bits || d.differing == d.nan_in_both)) continue;
      if (out.size() < kMaxListed)
        out.push_back({{"a", tensor(ta)}, {"b", tensor(tb)}, {"distance", distance(d)}, {"read_by", row(s, r)}});
    }
  }
  return {{"compared", compared}, {"differing", out}};
}

json results(const Sides& s) {
  json out = json::array();
  std::size_t compared = 0, same = 0, nan = 0;
  const std::vector<std::uint32_t> others = same_results(s.a, s.b);
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i] == kNone) continue;
    ++compared;
    const Distance& d = s.results[i];
    if (d.known && (d.same_bits || d.differing == d.nan_in_both)) {
      ++(d.nan_in_both != 0 ? nan : same);
    } else if (out.size() < kMaxListed) {
      out.push_back({{"kind", s.a.results[i].kind}, {"name", s.a.results[i].name}, {"distance", distance(d)}});
    }
  }
  return {{"compared", compared}, {"same", same}, {"nan_in_both", nan}, {"differing", out}};
}

}  // namespace

json document(const Sides& s, const Judgement& j, const Unanswered& u) {
  std::size_t pairs = 0, only_a = 0, only_b = 0;
  for (const Row& r : s.rows) {
    pairs += r.a != kGap && r.b != kGap;
    only_a += r.b == kGap;
    only_b += r.a == kGap;
  }
  const Root *first = j.first(), *noise = j.first_noise();
  json out = {{"kind", "finitude diff"}, {"schema", 1}, {"a", s.name_a}, {"b", s.name_b}};
  out["verdict"] = first != nullptr ? "divergence" : u.any() ? "incomplete" : noise != nullptr ? "noise" : "same";
  out["divergence"] = first != nullptr ? root(s, *first) : json();
  out["noise"] = noise != nullptr ? root(s, *noise) : json();
  if (noise != nullptr && j.noise_growth > 0) {
    out["noise"]["grew_to"] = j.noise_growth;
    out["noise"]["grew_at"] = row(s, j.noise_row);
  }
  out["further"] = json::array();
  for (const Root& r : j.roots) {
    if (&r != first && r.level == Level::kDiffers && out["further"].size() < kMaxCalls)
      out["further"].push_back(root(s, r));
  }
  out["alignment"] = {{"calls_a", s.a.calls.size()},
                      {"calls_b", s.b.calls.size()},
                      {"pairs", pairs},
                      {"only_a", only_a},
                      {"only_b", only_b},
                      {"same", j.same},
                      {"noise", j.noise},
                      {"differ", j.differ},
                      {"unknown", j.unknown},
                      {"same_nan", j.same_nan}};
  out["unanswered"] = {
      {"a", u.in_a}, {"b", u.in_b}, {"few", u.few}, {"first", u.rows.empty() ? json() : row(s, u.rows.front())}};
  out["unaligned"] = stretches(s, j, u);
  out["arguments"] = json::array();
  for (const std::size_t r : j.arguments) {
    if (out["arguments"].size() >= kMaxListed) break;
    json item = row(s, r);
    item["arguments"] = json::array();
    for (const auto& [x, y] : other_arguments(s.a.calls[s.rows[r].a], s.b.calls[s.rows[r].b]))
      item["arguments"].push_back({{"arg", x.arg}, {"a", x.text}, {"b", y.text}});
    out["arguments"].push_back(item);
  }
  out["other_dtype"] = {{"pairs", j.other_dtype.size()},
                        {"first", j.other_dtype.empty() ? json() : row(s, j.other_dtype[0])}};
  out["both_non_finite"] = j.both_nan < s.rows.size() ? row(s, j.both_nan) : json();
  out["one_non_finite"] = j.one_nan < s.rows.size() ? row(s, j.one_nan) : json();
  out["inputs"] = inputs(s);
  out["results"] = results(s);
  out["about"] = json::array();
  for (const AboutDifference& d : s.about)
    out["about"].push_back({{"group", d.group}, {"key", d.key}, {"a", d.a}, {"b", d.b}});
  out["reproduced"] = {{"a", s.reproduced_a}, {"b", s.reproduced_b}};
  out["values_left_out"] = s.values_left_out;
  out["by_statistics"] = s.by_statistics;
  return out;
}

}  // namespace finitude::compare
