#include "record/argument_words.h"

#include <gtest/gtest.h>

namespace finitude::record {
namespace {

TEST(ArgumentWords, NamesEnumerations) {
  EXPECT_EQ(argument_word("dtype", "6"), "float32");
  EXPECT_EQ(argument_word("input_dtype", "15"), "bfloat16");
  EXPECT_EQ(argument_word("layout", "1"), "sparse_coo");
  EXPECT_EQ(argument_word("memory_format", "2"), "channels_last");
  EXPECT_EQ(argument_word("reduction", "1"), "mean");
}

TEST(ArgumentWords, LeavesOtherTextAlone) {
  EXPECT_EQ(argument_word("dim", "6"), "6");
  EXPECT_EQ(argument_word("dtype", "None"), "None");
  EXPECT_EQ(argument_word("dtype", ""), "");
  EXPECT_EQ(argument_word("dtype", "30"), "30");
  EXPECT_EQ(argument_word("dtype", "-1"), "-1");
  EXPECT_EQ(argument_word("dtype", "float32"), "float32");
}

}  // namespace
}  // namespace finitude::record
