#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "show/digest.h"
#include "show/html_parts.h"
#include "show/page.h"
#include "show/sample_reports.h"

namespace finitude::show {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t pos = text.find(what); pos != std::string::npos; pos = text.find(what, pos + what.size())) ++n;
  return n;
}

std::string between(const std::string& text, const std::string& open, const std::string& close) {
  const std::size_t start = text.find(open) + open.size();
  return text.substr(start, text.find(close, start) - start);
}

// Every tag of the page's body, with its attributes.
std::set<std::string> tag_names(const std::string& page) {
  const std::string body = between(page, "<body>", "</main>");
  std::set<std::string> names;
  for (std::size_t pos = body.find('<'); pos != std::string::npos; pos = body.find('<', pos + 1)) {
    const std::size_t end = body.find_first_of(" >\n", pos);
    names.insert(body.substr(pos + 1, end - pos - 1));
  }
  return names;
}

TEST(Html, ShowsTheWholeStory) {
  const std::string page = html_tables(sample("loss_forward"));
  for (const char* part :
       {"step 412 stopped before the optimizer: loss is NaN", "Born in forward", "aten::log", "model.py:87",
        "<span class=\"ln\">87</span>logp = torch.log(p)", "Path to the sink", "0 x -Inf = NaN",
        "proven by 3 of 3 experiments", "p clamped at 1e-12", "F.log_softmax(logits, -1) at model.py:86",
        "verified on this step", "gradients scanned", "21,476", "finitude replay finitude-runs/"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(html_tables(sample("gradient_backward")), HasSubstr("LinalgVectorNormBackward0 (aten::div)"));
  EXPECT_THAT(html_tables(sample("gradient_backward")), HasSubstr("not tried on the whole step"));
  EXPECT_THAT(html_tables(sample("gradient_backward")), Not(HasSubstr("Capsule")));
  EXPECT_THAT(html_tables(sample("advisories")), HasSubstr("Advisories"));
  EXPECT_THAT(html_tables(sample("unwatched")), HasSubstr("nothing that trains was seen"));
  EXPECT_THAT(html_tables(sample("several")), HasSubstr("loss of the last 4 steps: 0.59 to 0.71, last 0.59"));
}

TEST(Html, OnlyOurOwnTagsWhateverTheReportSays) {
  const std::set<std::string> ours = {
      "main",     "header",  "/header",  "h1",    "/h1",    "h2",   "/h2",   "h3",  "/h3",  "p",   "/p",   "section",
      "/section", "article", "/article", "code",  "/code",  "span", "/span", "pre", "/pre", "div", "/div", "table",
      "/table",   "thead",   "/thead",   "tbody", "/tbody", "tr",   "/tr",   "th",  "/th",  "td",  "/td",  "ol",
      "/ol",      "li",      "/li",      "dl",    "/dl",    "dt",   "/dt",   "dd",  "/dd"};
  for (const auto& [name, report] : samples()) {
    for (const std::string& tag : tag_names(html_tables(report))) EXPECT_TRUE(ours.count(tag)) << name << ": <" << tag;
  }
}

TEST(Html, HostileStringsStayText) {
  const std::string page = html_tables(sample("hostile"));
  EXPECT_EQ(occurrences(page, "<script"), 0u);
  EXPECT_EQ(occurrences(page, "</script"), 0u);
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\\u202egnp"));
  EXPECT_THAT(page, HasSubstr("{{body}}"));  // a placeholder in the report is not filled
  EXPECT_EQ(occurrences(page, "<main>"), 1u);
  for (const char c : page) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
}

TEST(Html, SelfContained) {
  for (const auto& [name, report] : samples()) {
    const std::string page = html_tables(report);
    for (const char* outside :
         {"http://", "https://", "src=", "href=", "@import", "url(", "style=", "onclick", "onload"}) {
      EXPECT_THAT(page, Not(HasSubstr(outside))) << name;
    }
  }
}

TEST(Html, ThePolicyNamesExactlyOurStyle) {
  const std::string page = html_tables(sample("trace"));
  const std::string policy = between(page, "Content-Security-Policy\" content=\"", "\"");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("script-src")));
  EXPECT_THAT(policy, HasSubstr("style-src 'sha256-" + sha256_base64(between(page, "<style>", "</style>")) + "'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
}

TEST(Html, OpTableOnlyWithATrace) {
  const std::string page = html_tables(sample("trace"));
  EXPECT_THAT(page, HasSubstr("<table id=\"ops\">"));
  EXPECT_EQ(occurrences(page, "<tr class=\"bad\">"), 2u);
  EXPECT_THAT(html_tables(sample("clean")), Not(HasSubstr("<table id=\"ops\">")));
}

TEST(Html, NonFiniteAndExtremeHistory) {
  EXPECT_THAT(history_words(json{{"loss", {1.0, std::nan(""), INFINITY}}}), HasSubstr("1 to 1, last Inf"));
  EXPECT_THAT(history_words(json{{"loss", {"NaN"}}}), HasSubstr("no finite value, last NaN"));
  EXPECT_THAT(history_words(json{{"loss", {-1e308, 1e308}}}), HasSubstr("-1e+308 to 1e+308"));
}

}  // namespace
}  // namespace finitude::show
