#include "show/comparison.h"

#include <gtest/gtest.h>

#include <random>

#include "show/printable.h"
#include "show/sample_reports.h"
#include "show/testing.h"

namespace finitude::show {
namespace {

using nlohmann::json;

TEST(Comparison, OfATraceWithItself) {
  const json document = compared(sample("trace"), sample("trace"));
  EXPECT_EQ(document["verdict"], "same");
  EXPECT_NE(comparison(document, {}).find("no difference"), std::string::npos);
}

TEST(Comparison, NamesTheLine) {
  json other = sample("trace");
  json& out = other["trace"]["ops"][1]["outputs"][0];
  out["inf"] = out["neg_inf"] = 0;
  const json document = compared(sample("trace"), other);
  EXPECT_EQ(document["verdict"], "divergence");
  EXPECT_EQ(document["divergence"]["at"]["a"]["line"], 87);
  const std::string text = comparison(document, {});
  EXPECT_NE(text.find("aten::log model.py:87"), std::string::npos) << text;
  EXPECT_NE(text.find("infinite on one side"), std::string::npos) << text;
}

// Reports that were changed at random places: those that pass the check are compared and shown.
TEST(Comparison, OfHostileReports) {
  std::mt19937 random(5);
  const json values = {0,
                       -1,
                       1e300,
                       18446744073709551615ull,
                       "NaN",
                       "\x1b[2J",
                       json::array(),
                       json::object(),
                       nullptr,
                       true,
                       json::array({4000000000ull, 9000000000000000ull})};
  std::size_t passed = 0;
  for (int round = 0; round < 10000; ++round) {
    json report = sample("trace");
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      json* node = &report["trace"];
      for (std::size_t steps = 2 + random() % 5; steps > 0 && node->is_structured() && !node->empty(); --steps) {
        auto child = node->begin();
        std::advance(child, static_cast<std::ptrdiff_t>(random() % node->size()));
        node = &*child;
      }
      *node = values[random() % values.size()];
    }
    if (!problem(report).empty()) continue;
    ++passed;
    const json document = compared(report, round % 2 != 0 ? sample("trace") : report);
    const std::string text = comparison(document, {});
    ASSERT_EQ(text.find('\x1b'), std::string::npos);
  }
  EXPECT_GT(passed, 500u);
}

}  // namespace
}  // namespace finitude::show
