#include "show/record_comparison.h"

#include <algorithm>
#include <cmath>

#include "show/about_lines.h"
#include "show/layout.h"
#include "show/words.h"

namespace finitude::show {
namespace {

constexpr int kHangOfRecords = 12;
constexpr std::size_t kShownPairs = 8, kShownAlone = 6;

class RecordComparison {
 public:
  RecordComparison(const Json& document, const TerminalOptions& options) : doc_(document), page_(options) {}

  std::string take() {
    about_lines(list(doc_, "about"), kHangOfRecords, &page_);
    verdict();
    if (const Json& d = at(doc_, "divergence"); d.is_object()) first(d);
    further();
    if (const Json& noise = at(doc_, "noise"); noise.is_object())
      put("noise", {"rounding differs from " + place(noise) + " on: " + worst(noise)});
    settings();
    table();
    alone();
    counts();
    return page_.take();
  }

 private:
  void put(const char* label, const std::vector<std::string>& texts, Tone tone = Tone::kPlain) {
    std::vector<Piece> out;
    for (const std::string& piece : texts) {
      if (!piece.empty()) out.push_back({piece, tone});
    }
    page_.line(label, Tone::kStrong, out, kHangOfRecords);
  }

  static std::string name_of(const Json& side) {
    const std::string name = text(side, "name"), op = text(side, "op");
    std::string out = name.empty() ? op : name;
    if (!op.empty() && op != name && op != "parameter") out += " (" + op + ")";
    if (const auto call = count(side, "call"); call != 0) out += " call " + std::to_string(call);
    if (text(side, "phase") != "forward") out += " " + text(side, "phase");
    return out;
  }
  static std::string line_of(const Json& side) {
    const std::string file = text(side, "file");
    return file.empty() ? "" : " " + file.substr(file.rfind('/') + 1) + ":" + digits(at(side, "line"));
  }
  static std::string place(const Json& pair) {
    const Json &a = at(pair, "a"), &b = at(pair, "b");
    const Json& known = a.is_object() ? a : b;
    std::string out = name_of(known) + line_of(known);
    if (a.is_object() && b.is_object() && name_of(a) != name_of(b)) out += " / " + name_of(b);
    return out;
  }

  static std::string distance_text(const Json& m) {
    if (m.contains("shape_a"))
      return text(m, "arg") + ": shape " + at(m, "shape_a").dump() + " against " + at(m, "shape_b").dump();
    std::string out = text(m, "arg") + ": ";
    if (const auto n = count(m, "nan_in_one")) out += grouped(n) + " NaN on one side, ";
    if (const auto n = count(m, "infinite")) out += grouped(n) + " infinite on one side, ";
    if (at(m, "exact") == true)
      out += grouped(count(m, "differing")) + " of " + grouped(count(m, "elements")) + " values differ, ";
    const double most = real(at(m, "max_abs"));
    if (most > 0) {
      out += (at(m, "exact") == true ? "at most by " : "statistics differ by ") + number_text(most) + ", " +
             number_text(real(at(m, "relative"))) + " of the largest, " + grouped(count(m, "max_ulps")) + " ulp";
    } else {
      out += at(m, "exact") == true ? "by their bits only" : "the bits differ, the statistics do not";
    }
    if (known(at(m, "cosine"))) out += ", cosine " + number_text(real(at(m, "cosine")));
    return out;
  }
  static const Json& worst_of(const Json& pair, const char* part) {
    static const Json none;
    const Json* found = &none;
    for (const Json& m : list(pair, part)) {
      if (text(m, "level") == "same") continue;
      const bool is_worse =
          found->is_null() || (text(m, "level") == "differs" && text(*found, "level") != "differs") ||
          (text(m, "level") == text(*found, "level") && real(at(m, "relative")) > real(at(*found, "relative")));
      if (is_worse) found = &m;
    }
    return *found;
  }
  static std::string worst(const Json& pair) {
    const Json& m = worst_of(pair, "outputs");
    return m.is_null() ? "" : distance_text(m);
  }

  void verdict() {
    const std::string verdict = text(doc_, "verdict");
    if (verdict == "same") {
      page_.line("finitude:", Tone::kGood, {{"no difference: every record that both have is the same"}}, 0);
    } else if (verdict == "noise") {
      page_.line("finitude:", Tone::kGood, {{"no divergence: what differs is rounding noise"}}, 0);
    } else if (verdict == "incomplete") {
      page_.line("finitude:", Tone::kBad,
                 {{"not known: too few records of one correspond to records of the other; --map FILE names them"}}, 0);
    } else {
      page_.line("finitude:", Tone::kBad, {{sentence(at(doc_, "divergence")), Tone::kStrong}}, 0);
    }
  }

  static std::string sentence(const Json& d) {
    const std::string kind = text(d, "kind"), within = text(d, "within");
    const std::string of = within.empty() ? "" : " of " + within;
    if (kind == "settings") return "they diverge in a module with other settings";
    if (kind == "parameter") return "they diverge in a module with another " + first_explainer(d);
    if (kind == "random") return "they diverge in a module that draws random numbers";
    if (kind == "data") return "they diverge in the data that the model is given";
    if (kind == "calls") return "they diverge where one calls modules that the other does not";
    if (kind == "between") return "they diverge in the code" + of + " between recorded modules";
    if (kind == "gradient") return "the forward agrees; they diverge in the backward";
    if (kind == "optimizer") return "they diverge in what the optimizer computes";
    const bool knows_all = !text(at(d, "a"), "settings").empty() && !text(at(d, "b"), "settings").empty();
    return knows_all ? "they diverge in a module whose inputs, parameters and settings agree"
                     : "they diverge where the same is read: parameters and settings are not in both dumps";
  }
  static std::string first_explainer(const Json& d) {
    const Json& all = list(d, "explained_by");
    return all.empty() || !all[0].is_string() ? "parameter" : all[0].get<std::string>();
  }

  void first(const Json& d) {
    const std::string kind = text(d, "kind");
    put("first", {place(d)}, Tone::kBad);
    const bool by_input = kind == "data" || kind == "between" || kind == "calls";
    const Json& input = worst_of(d, "inputs");
    if (by_input && !input.is_null()) put("", {"reads another " + distance_text(input)});
    if (kind == "parameter") {
      if (const Json& m = worst_of(d, "parameters"); !m.is_null()) put("", {"another " + distance_text(m)});
    }
    if (kind == "settings") {
      const Json& both = list(d, "explained_by");
      for (std::size_t i = 0; i < std::min<std::size_t>(both.size(), 2); ++i) {
        if (both[i].is_string()) put("", {(i == 0 ? "A: " : "B: ") + both[i].get<std::string>()});
      }
    }
    std::size_t shown = 0;
    for (const Json& one : list(d, "alone")) {
      if (++shown <= kShownAlone) put("", {side_of(one) + place(one)});
    }
    if (!worst(d).empty()) put("", {worst(d) + "; rounding explains " + number_text(real(at(d, "bound")))});
  }
  void further() {
    std::size_t shown = 0;
    for (const Json& one : list(doc_, "further")) {
      if (++shown <= kShownAlone) put("also", {place(one), worst(one)});
    }
    if (shown > kShownAlone) put("", {"and " + grouped(shown - kShownAlone) + " more"});
  }

  static std::string side_of(const Json& one) { return at(one, "a").is_object() ? "only in A: " : "only in B: "; }

  void settings() {
    std::size_t shown = 0;
    for (const Json& one : list(doc_, "other_settings")) {
      if (shown < kShownAlone)
        put(shown++ == 0 ? "settings" : "",
            {place(one), text(at(one, "a"), "settings") + " against " + text(at(one, "b"), "settings")});
    }
    if (const auto all = list(doc_, "other_settings").size(); all > shown)
      put("", {"and " + grouped(all - shown) + " more"});
  }

  // The pairs that differ, in order.
  void table() {
    std::size_t shown = 0, all = 0;
    for (const Json& pair : list(doc_, "pairs")) {
      if (text(pair, "level") != "differs") continue;
      ++all;
      if (shown < kShownPairs) {
        put(shown++ == 0 ? "differ" : "", {place(pair), worst(pair)});
      }
    }
    if (all > shown) put("", {"and " + grouped(all - shown) + " more (--json has all)"});
  }

  void alone() {
    std::size_t shown = 0;
    for (const Json& one : list(doc_, "alone")) {
      if (++shown <= kShownAlone) put(shown == 1 ? "alone" : "", {side_of(one) + place(one)});
    }
    if (shown > kShownAlone) put("", {"and " + grouped(shown - kShownAlone) + " more"});
  }

  void counts() {
    const Json& c = at(doc_, "counts");
    std::string line = grouped(count(c, "pairs")) + " records of both (" + grouped(count(c, "same")) +
                       " with the same bits, " + grouped(count(c, "noise")) + " within rounding, " +
                       grouped(count(c, "differ")) + " beyond), " + grouped(count(c, "only_a")) + " only in A, " +
                       grouped(count(c, "only_b")) + " only in B";
    if (const auto n = count(c, "by_structure")) line += "; " + grouped(n) + " were matched by class and order";
    if (const auto n = count(c, "other_dtype")) line += "; " + grouped(n) + " have another dtype";
    put("compared", {line}, Tone::kDim);
    if (const Json& ranks = at(doc_, "ranks"); ranks.is_object())
      put("", {"of one rank each: A has " + grouped(count(ranks, "a")) + ", B has " + grouped(count(ranks, "b")) +
               "; --join puts the parts that they hold together"});
    joined("a", "A");
    joined("b", "B");
    if (at(doc_, "has_values") != true)
      put("", {"by checksums and statistics: no values were there to compare"}, Tone::kDim);
  }

  void joined(const char* side, const std::string& name) {
    const Json& c = at(at(doc_, "joined"), side);
    if (!c.is_object()) return;
    const auto ranks = count(c, "ranks");
    std::string line = name + ": " + grouped(ranks) + (ranks == 1 ? " rank, " : " ranks, ") +
                       grouped(count(c, "joined")) + " values made of parts";
    if (const auto n = count(c, "other"))
      line += "; " + grouped(n) + " differ between ranks, the first rank's is compared";
    if (const auto n = count(c, "unjoined")) line += "; parts of " + grouped(n) + " make no whole, not compared";
    if (const auto n = count(c, "skipped"))
      line += "; " + grouped(n) + " records not compared: stages, gradients of parts of a batch";
    put("", {line}, Tone::kDim);
  }

  const Json& doc_;
  Layout page_;
};

}  // namespace

std::string record_comparison(const nlohmann::json& document, const TerminalOptions& options) {
  return RecordComparison(document, options).take();
}

}  // namespace finitude::show
