#include "capture/redact.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace finitude::capture {
namespace {

TEST(Redact, NoSentenceOfAnAlarmHoldsAValue) {  // tests/capsule/test_capsule_redacted.py has the same
  const std::pair<std::string, std::string> table[] = {
      {"v of layers.0.1.weight at [3, 2] is -0.25: corrupt", "v of layers.0.1.weight at [3, 2] is (redacted): corrupt"},
      {"values from -0.531 to 8.04e-3, grown x60", "values from (redacted) to (redacted), grown x60"},
      {"by 4.97e+32 in 3 steps (torch 2.13.0)", "by (redacted) in 3 steps (torch 2.13.0)"},
      {"it was 1e5.", "it was (redacted)."},
      {"float16 at 0.weight, train.py:16, 1.", "float16 at 0.weight, train.py:16, 1."},
      {"", ""},
  };
  for (const auto& [said, reported] : table) {
    nlohmann::json alarm = {{"cause", {{"text", said}, {"experiments", {{{"name", said}}}}}}};
    redact_alarm(alarm);
    EXPECT_EQ(alarm["cause"]["text"], reported);
    EXPECT_EQ(alarm["cause"]["experiments"][0]["name"], reported);
  }
}

}  // namespace
}  // namespace finitude::capture
