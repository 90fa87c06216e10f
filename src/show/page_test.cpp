#include "show/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "show/page_document.h"
#include "show/sample_reports.h"
#include "show/show.h"

namespace finitude::show {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kTemplate =
    "<title>@@title@@</title><pre>@@terminal@@</pre><script type=\"application/json\">@@report@@</script>";

json inserted(const json& report) {
  const std::string page = filled_page(kTemplate, report), open = "json\">";
  const std::size_t start = page.find(open) + open.size();
  return json::parse(page.substr(start, page.find("</script>") - start));
}

TEST(Page, NoReportAddsATag) {
  const auto tags = [](const std::string& page) { return std::count(page.begin(), page.end(), '<'); };
  for (const auto& [name, report] : samples()) {
    EXPECT_EQ(tags(filled_page(kTemplate, report)), 6) << name;
    EXPECT_EQ(tags(html(report)), has_built_page() ? tags(html(json::object())) : tags(html_tables(report))) << name;
  }
}

TEST(Page, InsertedJsonIsAsciiOfOneLine) {
  for (const auto& [name, report] : samples()) {
    const std::string page = filled_page("@@report@@", report);
    EXPECT_TRUE(std::all_of(page.begin(), page.end(), [](char c) { return c >= 0x20 && c < 0x7f; })) << name;
    EXPECT_EQ(json::parse(page), page_document(report)) << name;
  }
}

TEST(Page, HostileTextsAreInsertedPrintable) {
  const std::string all = inserted(sample("hostile")).dump();
  EXPECT_THAT(all, HasSubstr("<script>alert(1)</script>"));
  EXPECT_THAT(all, Not(HasSubstr("\u202e")));
}

TEST(Page, MarksInAReportStayText) {
  json report = sample("clean");
  report["outcome"] = "unwatched";
  report["reason"] = "@@report@@ @@terminal@@";
  const std::string page = filled_page(kTemplate, report);
  EXPECT_THAT(page, HasSubstr("<title>finitude: nothing that trains was seen: @@report@@ @@terminal@@</title>"));
  EXPECT_EQ(inserted(report)["title"], "nothing that trains was seen: @@report@@ @@terminal@@");
}

TEST(Page, DocumentHasTheSentencesOfTheTerminal) {
  const json story = page_document(sample("loss_forward"))["stories"]["items"][0];
  EXPECT_EQ(story["title"], "step 412 stopped before the optimizer: loss is NaN (rank 0). Weights are clean.");
  EXPECT_EQ(story["cause"]["tag"], "proven by 3 of 3 experiments");
  EXPECT_EQ(story["fix"]["text"], "F.log_softmax(logits, -1) at model.py:86");
  EXPECT_EQ(story["births"]["items"][0]["where"]["place"], "model.py:87");
  EXPECT_EQ(story["births"]["items"][0]["outputs"]["items"][0]["negInf"], 3);
  EXPECT_EQ(story["path"]["items"][0]["text"], "0 x -Inf = NaN");
  EXPECT_THAT(filled_page(kTemplate, sample("loss_forward")), HasSubstr("<pre>finitude: step 412 stopped"));
}

TEST(Page, ListsAreBounded) {
  json report = sample("loss_forward");
  json& alarm = report["alarms"][0];
  for (int i = 0; i < 300; ++i) alarm["path"].push_back(alarm["path"][0]);
  const json path = page_document(report)["stories"]["items"][0]["path"];
  EXPECT_EQ(path["items"].size(), 200u);
  EXPECT_EQ(path["more"], 102);
}

TEST(Page, ExponentsThatAreNoCountsAreDropped) {
  json report = sample("loss_forward");
  json& input = report["alarms"][0]["births"][0]["inputs"][0];
  const auto shown = [&] {
    return page_document(report)["stories"]["items"][0]["births"]["items"][0]["inputs"]["items"][0]["exponents"];
  };
  input["exponents"] = {{"first", -3}, {"counts", {1, 0, 7}}};
  EXPECT_EQ(shown(), input["exponents"]);
  for (const json& bad : {json("x"), json{{"first", 0.5}, {"counts", {1}}}, json{{"first", 0}, {"counts", {-1}}},
                          json{{"first", 0}, {"counts", {"<"}}}}) {
    input["exponents"] = bad;
    EXPECT_TRUE(shown().is_null()) << bad;
  }
}

}  // namespace
}  // namespace finitude::show
