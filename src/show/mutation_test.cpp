// A deterministic fuzz: reports changed at random places must be judged and shown without a crash, a wide
// line or a live tag.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <sstream>
#include <vector>

#include "show/page.h"
#include "show/printable.h"
#include "show/sample_reports.h"
#include "show/show.h"
#include "show/summary.h"

namespace finitude::show {
namespace {

using nlohmann::json;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  void mutate(json& report) {
    json* node = &report;
    json* parent = nullptr;
    for (std::size_t steps = 1 + below(8); steps > 0 && node->is_structured() && !node->empty(); --steps) {
      parent = node;
      auto child = node->begin();
      std::advance(child, static_cast<std::ptrdiff_t>(below(node->size())));
      node = &*child;
    }
    switch (below(4)) {
      case 0:
        *node = value();
        return;
      case 1:
        if (parent && parent->is_object()) {
          auto victim = parent->begin();
          std::advance(victim, static_cast<std::ptrdiff_t>(below(parent->size())));
          parent->erase(victim);
        }
        return;
      case 2:
        if (parent && parent->is_array()) {
          const json copy = *node;
          for (std::size_t n = below(40); n > 0; --n) parent->push_back(copy);
        }
        return;
      default:
        *node = json(report);  // the document inside itself
    }
  }

 private:
  json value() {
    static const std::vector<json> kValues = {nullptr,
                                              true,
                                              -1,
                                              0,
                                              18446744073709551615u,
                                              -9223372036854775807 - 1,
                                              1e308,
                                              -0.0,
                                              std::nan(""),
                                              INFINITY,
                                              "",
                                              "NaN",
                                              "-Infinity",
                                              "</script><script>alert(1)</script>",
                                              "\x1b]0;x\x07",
                                              "\xff\xfe\xc3",
                                              std::string(5000, 'w'),
                                              std::string(3000, '\n'),
                                              "\u4E2D\u6587\u4E2D\u6587\u4E2D\u6587\u4E2D\u6587",
                                              "\u202E\u2066",
                                              std::string(200, '/'),
                                              json::array(),
                                              json::object(),
                                              json::array({nullptr, -1, "x", json::array()}),
                                              json{{"op", 1}, {"text", nullptr}},
                                              std::string("a\0b", 3),
                                              "{{body}}"};
    return kValues[below(kValues.size())];
  }
  std::mt19937 random_;
};

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t pos = text.find(what); pos != std::string::npos; pos = text.find(what, pos + what.size())) ++n;
  return n;
}

void check(const json& report) {
  const std::string reason = problem(report);
  EXPECT_EQ(printable(reason), reason);
  EXPECT_EQ(reason.find('\n'), std::string::npos);
  std::istringstream lines(terminal(report, {false, 80, true}));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("finitude") == std::string::npos) ASSERT_LE(columns(line), 80) << line;  // no command is wrapped
    ASSERT_EQ(printable(line), line);
  }
  ASSERT_EQ(occurrences(html_tables(report), "<script"), 0u);
  ASSERT_EQ(occurrences(html_tables(report), "</main>"), 1u);
  ASSERT_EQ(occurrences(filled_page("<p>@@title@@@@terminal@@@@report@@", report), "<"), 1u);
  EXPECT_LT(summary(report).size(), 100'000u);
}

TEST(Mutation, ChangedReports) {
  int accepted = 0, refused = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    for (const auto& [name, report] : samples()) {
      Mutator mutator(seed * 1000 + static_cast<unsigned>(name.size()));
      json changed = report;
      for (std::size_t n = 1 + mutator.below(4); n > 0; --n) {
        if (changed.is_structured()) mutator.mutate(changed);
      }
      SCOPED_TRACE(name + " " + std::to_string(seed));
      check(changed);
      if (HasFatalFailure()) return;
      problem(changed).empty() ? ++accepted : ++refused;
    }
  }
  EXPECT_GT(accepted, 30);  // both sides of the gate were tried
  EXPECT_GT(refused, 50);
}

TEST(Mutation, ChangedBytes) {
  std::mt19937 random(7);
  int parsed = 0;
  for (int i = 0; i < 600; ++i) {
    std::string bytes = sample(i % 2 ? "loss_forward" : "trace").dump();
    for (int n = 0; n < 2; ++n) bytes[random() % bytes.size()] = static_cast<char>("0129-\"{}[],:eNx\\"[random() % 16]);
    const json report = json::parse(bytes, nullptr, false);
    if (report.is_discarded()) continue;
    ++parsed;
    check(report);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(parsed, 20);
}

}  // namespace
}  // namespace finitude::show
