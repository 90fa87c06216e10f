#include "show/printable.h"

#include <gtest/gtest.h>

namespace finitude::show {
namespace {

TEST(Printable, EscapeSequencesAreWrittenOut) {
  EXPECT_EQ(printable("a\x1b[31mb\x07"), "a\\x1b[31mb\\x07");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\x9b2J");  // CSI as one C1 character
  EXPECT_EQ(printable("x\x7f"), "x\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("a\rb"), "a\\x0db");
}

TEST(Printable, WhiteSpaceBecomesOneBlank) {
  EXPECT_EQ(printable("a\n    .b()\tc"), "a .b() c");
  EXPECT_EQ(printable("a\r\nb"), "a b");
}

TEST(Printable, ReorderingAndInvisibleCharactersAreWrittenOut) {
  EXPECT_EQ(printable("\u202Eabc\u2066"), "\\u202eabc\\u2066");
  EXPECT_EQ(printable("a\u200Bb\uFEFF"), "a\\u200bb\\ufeff");
  EXPECT_EQ(printable("\u2028"), "\\u2028");
  EXPECT_EQ(printable("\U000E0041"), "\\U000e0041");
}

TEST(Printable, BrokenUtf8IsWrittenOutByteByByte) {
  EXPECT_EQ(printable("a\xFFz"), "a\\xffz");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(printable("\xE4\xB8"), "\\xe4\\xb8");           // cut off
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, AsciiFallback) {
  EXPECT_EQ(printable("a \u2192 b\u2026 \u00E9\u4E2D", false), "a -> b... \\xe9\\u4e2d");
  EXPECT_EQ(printable("\u00E9\u4E2D"), "\u00E9\u4E2D");
}

TEST(Columns, WideCharactersTakeTwo) {
  EXPECT_EQ(columns("abc"), 3);
  EXPECT_EQ(columns("\u00E9"), 1);
  EXPECT_EQ(columns("\u4E2D\u6587"), 4);
  EXPECT_EQ(columns("\uFF21"), 2);
  EXPECT_EQ(columns("\uD55C"), 2);
  EXPECT_EQ(columns("\U0001F600"), 2);
}

TEST(Columns, PrefixKeepsLimitAndWholeCodePoints) {
  EXPECT_EQ(prefix_within("\u4E2D\u6587", 3), 3u);
  EXPECT_EQ(prefix_within("\u4E2D\u6587", 4), 6u);
  EXPECT_EQ(prefix_within("abc", 2), 2u);
  EXPECT_EQ(prefix_within("\u4E2D", 1), 3u);  // at least one, so that loops end
}

TEST(Cut, KeepsTheEndOfPaths) {
  EXPECT_EQ(cut_left("/srv/fits/project/model.py:87", 20), ".../model.py:87");
  EXPECT_EQ(cut_left("short.py:1", 20), "short.py:1");
  EXPECT_EQ(cut("abcdefghij", 6), "abc...");
  EXPECT_LE(columns(cut_left("\u4E2D\u6587\u4E2D\u6587\u4E2D\u6587\u4E2D:12", 10)), 10);
}

}  // namespace
}  // namespace finitude::show
