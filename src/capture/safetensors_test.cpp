#include "capture/safetensors.h"

#include <gtest/gtest.h>

#include <random>

#include "capture/wire.h"

namespace finitude::capture {
namespace {

std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  WireWriter(&file).u64(header.size());
  return file + header + data;
}
std::string why(const std::string& header, const std::string& data) {
  std::vector<NamedTensor> tensors;
  return read_safetensors(file_of(header, data), &tensors).why();
}

TEST(Safetensors, ComesBackAsItWas) {
  const std::string a(24, 'a'), b(4, 'b'), c;
  const std::vector<NamedTensor> tensors = {
      {"weight", "F32", {2, 3}, a}, {"b\"\n", "BF16", {2}, b}, {"empty", "I64", {0, 5}, c}};
  const std::string file = safetensors_header(tensors) + a + b + c;
  EXPECT_EQ((file.size() - a.size() - b.size()) % 8, 0u);
  std::vector<NamedTensor> read;
  ASSERT_EQ(read_safetensors(file, &read).why(), "");
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].name, "weight");
  EXPECT_EQ(read[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(read[0].bytes, a);
  EXPECT_EQ(read[1].name, "b\"\n");
  EXPECT_EQ(read[1].bytes, b);
}

TEST(Safetensors, AFileOfTheReferenceWriterIsRead) {
  // As safetensors 0.4 wrote {"x": float32 [2]} with metadata.
  EXPECT_EQ(
      why(R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )", "12345678"),
      "");
}

TEST(Safetensors, WhatCannotBeIsReported) {
  const std::string x = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(why("{\"x\":" + x + "}", "12345678"), "");
  EXPECT_NE(why("{\"x\":" + x + "}", "1234567"), "");                                                // cut
  EXPECT_NE(why("{\"x\":" + x + "}", "123456789"), "");                                              // something behind
  EXPECT_NE(why("{\"x\":" + x + ",\"x\":" + x + "}", "12345678"), "");                               // a name twice
  EXPECT_NE(why("{\"x\":" + x + ",\"y\":" + x + "}", "12345678"), "");                               // overlap
  EXPECT_NE(why(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "123456789abc"), "");  // a hole
  EXPECT_NE(why(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"), "");
  EXPECT_NE(why(R"({"x":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "12345678"), "");
  EXPECT_NE(why(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678"), "");
  EXPECT_NE(why(R"({"x":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,0]}})", ""), "");
  EXPECT_NE(why(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678"), "");
  EXPECT_NE(why(R"({"x":[]})", ""), "");
  EXPECT_NE(why("[]", ""), "");
  EXPECT_NE(why(" {}", ""), "");
  EXPECT_NE(why(std::string(10000, '['), ""), "");
  std::vector<NamedTensor> tensors;
  EXPECT_NE(read_safetensors("", &tensors).why(), "");
  EXPECT_NE(read_safetensors(std::string(8, '\xff'), &tensors).why(), "");
}

TEST(Safetensors, TwentyThousandMutationsAreRead) {
  const std::string a(24, 'a'), b(4, 'b');
  const std::vector<NamedTensor> tensors = {{"weight", "F32", {2, 3}, a}, {"bias", "BF16", {2}, b}};
  const std::string file = safetensors_header(tensors) + a + b;
  std::mt19937_64 random(7);
  std::size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = file;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n)
      changed[random() % changed.size()] = static_cast<char>(random());
    std::vector<NamedTensor> read;
    if (!read_safetensors(changed, &read).ok()) continue;
    ++accepted;
    std::size_t bytes = 0;
    for (const NamedTensor& tensor : read) bytes += tensor.bytes.size();
    ASSERT_LE(bytes, changed.size());
  }
  EXPECT_GT(accepted, 100u);
}

}  // namespace
}  // namespace finitude::capture
