#include "show/comparison.h"

#include <algorithm>
#include <cmath>

#include "show/about_lines.h"
#include "show/layout.h"
#include "show/words.h"

namespace finitude::show {
namespace {

constexpr int kHang = 12;
constexpr std::size_t kShown = 8, kShownCalls = 6;

class Comparison {
 public:
  Comparison(const Json& document, const TerminalOptions& options) : doc_(document), page_(options) {}

  std::string take() {
    headline();
    if (const Json& d = at(doc_, "divergence"); d.is_object()) root(d, "first");
    const Json& further = list(doc_, "further");
    for (std::size_t i = 0; i < std::min(further.size(), kShownCalls); ++i) root(further[i], "also");
    if (further.size() > kShownCalls)
      line("", {{"and " + std::to_string(further.size() - kShownCalls) + " more", Tone::kDim}});
    noise();
    results();
    unaligned();
    arguments();
    dtypes();
    if (const Json& both = at(doc_, "both_non_finite"); both.is_object())
      line("NaN or Inf", {{"in both, first made by " + where(both)}});
    if (const Json& one = at(doc_, "one_non_finite"); one.is_object())
      line("NaN or Inf", {{"in one, first made by " + where(one)}});
    inputs();
    about_lines(list(doc_, "about"), kHang, &page_);
    reproduced();
    alignment();
    return page_.take();
  }

 private:
  void line(const char* label, const std::vector<Piece>& pieces, Tone tone = Tone::kStrong) {
    page_.line(label, tone, pieces, kHang);
  }

  static std::string call(const Json& c) {
    std::string out = text(c, "op");
    if (const std::string file = text(c, "file"); !file.empty())
      out += (flag(c, "backward") ? " of " : " ") + file.substr(file.rfind('/') + 1) + ":" +
             std::to_string(count(c, "line"));
    return out;
  }
  // "aten::addmm model.py:12 (call 3 of A, 4 of B)"
  static std::string where(const Json& row) {
    const Json &a = at(row, "a"), &b = at(row, "b");
    if (a.is_object() && b.is_object()) {
      const std::string x = call(a), y = call(b);
      return x + (x == y ? "" : " / " + y) + " (call " + std::to_string(count(a, "index")) + " of A, " +
             std::to_string(count(b, "index")) + " of B)";
    }
    return a.is_object() ? call(a) + " (call " + std::to_string(count(a, "index")) + " of A)"
                         : call(b) + " (call " + std::to_string(count(b, "index")) + " of B)";
  }
  static std::string calls(const Json& all) {
    std::string out;
    for (std::size_t i = 0; i < std::min(all.size(), kShownCalls); ++i) out += (i ? ", " : "") + call(all[i]);
    if (all.size() > kShownCalls) out += " and " + std::to_string(all.size() - kShownCalls) + " more";
    return out.empty() ? "nothing" : out;
  }
  static std::string apart(const Json& d) {
    if (count(d, "elements") == 0 && count(d, "differing") == 0) return "of another form";
    std::string out;
    const std::string of = " of " + grouped(count(d, "elements"));
    if (const auto n = count(d, "nan_in_one")) out += grouped(n) + of + " are NaN on one side, ";
    if (const auto n = count(d, "infinite")) out += grouped(n) + of + " are infinite on one side, ";
    if (at(d, "exact") == true) {
      out += grouped(count(d, "differing")) + of + " differ";
    } else {
      out += "statistics differ";
    }
    if (real(at(d, "max_abs")) > 0) {
      out += ", by up to " + number_text(real(at(d, "max_abs")));
      if (const auto steps = count(d, "max_ulps")) out += " and " + grouped(steps) + " ulp of " + text(d, "dtype");
      out += " (" + number_text(real(at(d, "relative"))) + " of the largest)";
    }
    if (const Json& worst = at(d, "worst"); worst.is_object())
      out += "; at " + std::to_string(count(worst, "index")) + ": " + number_text(real(at(worst, "a"))) + " against " +
             number_text(real(at(worst, "b")));
    const Json& rows = list(d, "rows");
    if (!rows.empty() && rows.size() < 8) {
      out += rows.size() == 1 ? "; row " : "; rows ";
      for (std::size_t i = 0; i < rows.size(); ++i) out += (i ? ", " : "") + rows[i].dump();
    }
    return out;
  }
  static std::string changed(const Json& all) {
    std::string out;
    for (std::size_t i = 0; i < std::min(all.size(), kShownCalls); ++i) {
      const std::string a = text(all[i], "a"), b = text(all[i], "b");
      out += (i ? ", " : "") + text(all[i], "arg") + " = " + (a.empty() ? "none" : a) + " against " +
             (b.empty() ? "none" : b);
    }
    return out;
  }

  void headline() {
    const std::string verdict = text(doc_, "verdict");
    if (verdict == "same") {
      const bool other = count(at(doc_, "alignment"), "differ") != 0;  // made good before anything came of it
      line("finitude:",
           {{other ? "no difference: what they compute in other ways has the same results"
                   : "no difference: every call that both have gave the same bits"}},
           Tone::kGood);
    } else if (verdict == "noise") {
      line("finitude:", {{"no divergence: what differs is rounding noise"}}, Tone::kGood);
    } else if (verdict == "incomplete") {
      incomplete();
    } else {
      line("finitude:", {{sentence(at(doc_, "divergence")), Tone::kStrong}}, Tone::kBad);
    }
  }

  // What could be compared does not part, and it is not all that the two come to.
  void incomplete() {
    const Json& u = at(doc_, "unanswered");
    const auto a = count(u, "a"), b = count(u, "b");
    line("finitude:",
         {{a + b == 0 ? "not known: too few calls of one correspond to calls of the other"
                      : "not known: gradients or NaN come from calls that the other side does not have",
           Tone::kStrong}},
         Tone::kBad);
    if (const Json& first = at(u, "first"); first.is_object())
      line("first", {{where(first), Tone::kBad},
                     {grouped(a) + " such calls of A, " + grouped(b) + " of B: what they make could not be compared"}});
  }

  static std::string sentence(const Json& d) {
    const std::string kind = text(d, "kind");
    if (kind == "argument") return "they part where the same operator gets another argument";
    if (kind == "random" && text(d, "generator") == "same")
      return "they part where random numbers are drawn: by other operators";
    if (kind == "random" && text(d, "generator") == "unknown") return "they part where random numbers are drawn";
    if (kind == "random") return "they part where random numbers are drawn: the generator was in another state";
    if (kind == "operators") return "they part where one calls other operators than the other";
    if (kind == "input") {
      const std::string source = text(d, "source");
      return source == "data" ? "they part in the data that the step reads"
                              : "they part in " + source + ", which the step begins with";
    }
    if (kind == "wiring") return "they part where the same operator reads something else";
    if (kind == "non-finite") return "they part where one side gets NaN or Inf; until there only rounding differs";
    return "they part where the same operator on the same values gives something else";
  }

  void root(const Json& d, const char* label) {
    const std::string kind = text(d, "kind");
    if (kind == "operators") {
      line(label, {{"only in A: " + calls(list(d, "only_a")), Tone::kBad},
                   {"only in B: " + calls(list(d, "only_b")), Tone::kBad}});
      source(at(d, "at"));
      if (const Json& seen = at(d, "seen_at"); seen.is_object())
        line("", {{"shows in what " + where(seen) + " reads"}});
    } else if (kind == "input") {
      const std::string name = text(at(d, "input"), "name");
      line(label, {{name.empty() ? "data" : name, Tone::kBad}, {"read by " + where(at(d, "at"))}});
    } else {
      line(label, {{where(at(d, "at")), Tone::kBad}});
      source(at(d, "at"));
      if (const Json& all = list(d, "arguments"); !all.empty()) line("", {{changed(all)}});
      if (const Json &x = list(d, "only_a"), &y = list(d, "only_b"); !x.empty() || !y.empty())
        line("", {{(text(d, "generator") != "elsewhere" ? "made in A by " : "drawn before in A alone: ") + calls(x)},
                  {(text(d, "generator") != "elsewhere" ? "in B by " : "in B alone: ") + calls(y)}});
      if (const Json& seen = at(d, "seen_at"); seen.is_object())
        line("", {{"shows in what " + where(seen) + " reads"}});
    }
    line("", {{apart(at(d, "distance")) + "; rounding explains " + number_text(real(at(d, "bound")))}}, Tone::kPlain);
  }

  void source(const Json& row) {
    const std::string a = text(at(row, "a"), "source"), b = text(at(row, "b"), "source");
    if (!a.empty()) line("", {{(b == a || b.empty() ? "" : "A: ") + a, Tone::kCode}});
    if (!b.empty() && b != a) line("", {{(a.empty() ? "" : "B: ") + b, Tone::kCode}});
  }

  void noise() {
    const Json& n = at(doc_, "noise");
    if (!n.is_object()) return;
    line("noise", {{"rounding differs from " + where(at(n, "at")) + " on: " + apart(at(n, "distance"))}});
    if (const Json& grew = at(n, "grew_at"); grew.is_object())
      line("", {{"and grew to " + number_text(real(at(n, "grew_to"))) + " of the largest in " + where(grew)}});
  }

  void results() {
    const Json& r = at(doc_, "results");
    if (count(r, "compared") == 0) return;
    const std::string of = " of " + grouped(count(r, "compared"));
    const auto nan = count(r, "nan_in_both");
    line("results",
         {{grouped(count(r, "same")) + of + " have the same bits" +
           (nan == 0 ? "" : ", " + grouped(nan) + of + " hold NaN on both sides, which is equal to nothing")}});
    const Json& all = list(r, "differing");
    for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i)
      line("", {{text(all[i], "kind") + " " + text(all[i], "name")}, {apart(at(all[i], "distance")), Tone::kDim}});
    if (all.size() > kShown) line("", {{"and " + std::to_string(all.size() - kShown) + " more", Tone::kDim}});
  }

  void unaligned() {
    const Json& all = list(doc_, "unaligned");
    for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) {
      const std::string effect = text(all[i], "effect");
      std::vector<Piece> pieces;
      if (!list(all[i], "only_a").empty()) pieces.push_back({"only in A: " + calls(list(all[i], "only_a"))});
      if (!list(all[i], "only_b").empty()) pieces.push_back({"only in B: " + calls(list(all[i], "only_b"))});
      pieces.push_back({effect == "same"      ? "changes no value"
                        : effect == "noise"   ? "changes rounding only"
                        : effect == "unknown" ? "makes values that could not be compared"
                                              : "changes values",
                        Tone::kDim});
      line(i == 0 ? "one side" : "", pieces);
    }
    if (all.size() > kShown) line("", {{"and " + std::to_string(all.size() - kShown) + " more places", Tone::kDim}});
  }

  void arguments() {
    const Json& all = list(doc_, "arguments");
    for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i)
      line(i == 0 ? "arguments" : "", {{where(all[i])}, {changed(list(all[i], "arguments")), Tone::kDim}});
    if (all.size() > kShown) line("", {{"and " + std::to_string(all.size() - kShown) + " more", Tone::kDim}});
  }

  void dtypes() {
    const Json& d = at(doc_, "other_dtype");
    if (count(d, "pairs") == 0) return;
    line("precision", {{grouped(count(d, "pairs")) + " calls have another dtype, the first " + where(at(d, "first")) +
                        "; compared in the coarser one"}});
  }

  void inputs() {
    const Json& in = at(doc_, "inputs");
    const Json& all = list(in, "differing");
    for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) {
      const std::string name = text(at(all[i], "a"), "name");
      line(i == 0 ? "inputs" : "", {{name.empty() ? "data" : name},
                                    {apart(at(all[i], "distance")), Tone::kDim},
                                    {"read by " + where(at(all[i], "read_by")), Tone::kDim}});
    }
    if (all.size() > kShown) line("", {{"and " + std::to_string(all.size() - kShown) + " more", Tone::kDim}});
    if (all.empty() && count(in, "compared") != 0)
      line("inputs", {{"the " + grouped(count(in, "compared")) + " that both read are equal"}});
  }

  void reproduced() {
    for (const char* side : {"a", "b"}) {
      if (at(at(doc_, "reproduced"), side) == false)
        line("replayed",
             {{std::string(side[0] == 'a' ? "A" : "B") + " comes out with other bits here than it was recorded with; "
                                                         "`finitude replay` says which",
               Tone::kWarn}});
    }
  }

  void alignment() {
    const Json& a = at(doc_, "alignment");
    line("compared",
         {{grouped(count(a, "pairs")) + " calls of both (" +
               grouped(count(a, "same") - std::min(count(a, "same_nan"), count(a, "same"))) + " with the same bits, " +
               (count(a, "same_nan") == 0 ? "" : grouped(count(a, "same_nan")) + " with NaN on both sides, ") +
               grouped(count(a, "noise")) + " within rounding, " + grouped(count(a, "differ")) + " beyond), " +
               grouped(count(a, "only_a")) + " of A alone, " + grouped(count(a, "only_b")) + " of B alone",
           Tone::kDim}},
         Tone::kDim);
    if (const auto n = count(doc_, "values_left_out"))
      line("",
           {{grouped(n) + " tensors were compared by their statistics: they did not fit (--memory-mb)", Tone::kDim}});
    if (at(doc_, "by_statistics") == true)
      line("", {{"by the statistics of traces: values that leave minimum, maximum, sum of squares and counts as they "
                 "are count as the same",
                 Tone::kDim}});
  }

  const Json& doc_;
  Layout page_;
};

}  // namespace

std::string comparison(const nlohmann::json& document, const TerminalOptions& options) {
  return Comparison(document, options).take();
}

}  // namespace finitude::show
