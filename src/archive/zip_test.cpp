#include "archive/zip.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace finitude::archive {
namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

// What zlib 1.2.13 makes of `text` with one code, and without any.
const std::string kText = "tape tape tape tape ";
const std::string kFixed = from_hex("2b492c485528412500");
const std::string kStored = from_hex("011400ebff7461706520746170652074617065207461706520");

// 760 bytes that zlib gives codes of their own.
std::string varied() {
  std::string bytes;
  for (unsigned i = 0; i < 400; ++i) bytes.push_back(static_cast<char>((i * i >> 3) & 0x3f));
  for (int i = 0; i < 120; ++i) bytes += "abc";
  return bytes;
}
const std::string kDynamic = from_hex(
    "ed8f617a0131140023a21e82158b20786211041141b0384bdbfbdfa1ed25faf54767e602430829d0227b832a6f8a8e549899adbfe4141ae950"
    "af5c2490f4f5263c41a8a57f408a3696c4c4dea09b1d690b1d49f040dbd91906f625e6916380912f2b0fe350d3d7c410e92afa9eee40e73d5f"
    "370c7379127bbe86059bd129c16fa774c616b0e67b7192393253f7bd5cc32ebdeb8a93c424575d0b63f0aaec471090c7b978d9019cb3363d60"
    "421cb6e831ebc2cd4e44295a4ce1e1974ac0336c743f0112dd4a0fd306d0fce2b72643253ba2c9abf0c68ab4407ef853ffef1f9ffffd425f");

void put(std::string* bytes, std::uint64_t value, int size_bytes) {
  for (int i = 0; i < size_bytes; ++i) bytes->push_back(static_cast<char>(i < 8 ? value >> (8 * i) : 0));
}

// An archive of one entry, `e`. in_header: the name that its own header has.
std::string zip_of(const std::string& packed, std::uint64_t size_bytes, std::uint64_t method, bool is_zip64 = false,
                   const std::string& in_header = "e") {
  const std::uint64_t elsewhere = 0xffffffff;
  std::string bytes = "PK\x03\x04" + std::string(22, '\0');
  put(&bytes, in_header.size(), 4);
  bytes += in_header + packed;
  const std::uint64_t at = bytes.size();
  bytes += "PK\x01\x02" + std::string(6, '\0');
  put(&bytes, method, 10);
  put(&bytes, is_zip64 ? elsewhere : packed.size(), 4);
  put(&bytes, is_zip64 ? elsewhere : size_bytes, 4);
  put(&bytes, 1, 2);
  put(&bytes, is_zip64 ? 20 : 0, 2);
  bytes += std::string(14, '\0') + "e";
  if (is_zip64) {
    put(&bytes, 16U << 16 | 1U, 4);
    put(&bytes, size_bytes, 8);
    put(&bytes, packed.size(), 8);
  }
  const std::uint64_t directory = bytes.size() - at;
  bytes += "PK\x05\x06";
  put(&bytes, 0, 4);
  put(&bytes, 1U << 16 | 1U, 4);
  put(&bytes, directory, 4);
  put(&bytes, at, 6);
  return bytes;
}

std::string content_of(const std::string& archive) {
  std::vector<ZipEntry> entries;
  if (!read_zip({File::of_bytes(archive), 0, archive.size()}, &entries).ok()) return "no archive";
  std::string content;
  return entries.at(0).read(std::uint64_t{1} << 60, &content).ok() ? content : "refused";
}

std::string inflated(const std::string& deflated, std::uint64_t size_bytes) {
  return content_of(zip_of(deflated, size_bytes, 8, true));
}

TEST(ZipDeflated, ReadsEveryKindOfBlock) {
  EXPECT_EQ(inflated(kFixed, kText.size()), kText);
  EXPECT_EQ(inflated(kStored, kText.size()), kText);
  EXPECT_EQ(inflated(kDynamic, varied().size()), varied());
}

TEST(ZipDeflated, RefusesAnotherSizeThanAnnounced) {
  for (const std::string& deflated : {kFixed, kStored}) {
    EXPECT_EQ(inflated(deflated, kText.size() - 1), "refused");
    EXPECT_EQ(inflated(deflated, kText.size() + 1), "refused");
  }
  EXPECT_EQ(inflated(kFixed, std::uint64_t{1} << 60), "refused");
}

TEST(ZipDeflated, RefusesEveryTruncatedStream) {
  for (const auto& [deflated, size_bytes] :
       {std::pair{kFixed, kText.size()}, {kStored, kText.size()}, {kDynamic, varied().size()}}) {
    for (std::size_t length = 0; length < deflated.size(); ++length)
      EXPECT_EQ(inflated(deflated.substr(0, length), size_bytes), "refused") << length;
  }
}

TEST(ZipDeflated, DamagedStreamsStayWithinTheirBounds) {
  std::mt19937 draw(7);
  std::size_t refused = 0;
  for (int round = 0; round < 4'000; ++round) {
    std::string deflated = kDynamic;
    for (unsigned i = 0; i <= draw() % 3; ++i) deflated[draw() % deflated.size()] = static_cast<char>(draw());
    const std::string bytes = inflated(deflated, varied().size());
    refused += bytes == "refused";
    EXPECT_TRUE(bytes == "refused" || bytes.size() == varied().size());
  }
  EXPECT_GT(refused, 2'000U);
}

TEST(Zip, ReadsStoredEntriesWithShortAndLongSizes) {
  EXPECT_EQ(content_of(zip_of(kText, kText.size(), 0)), kText);
  EXPECT_EQ(content_of(zip_of(kText, kText.size(), 0, true)), kText);
  EXPECT_EQ(content_of(zip_of("", 0, 0)), "");
}

TEST(Zip, RefusesWhatItsPartsContradict) {
  EXPECT_EQ(content_of(zip_of(kText, kText.size() + 1, 0)), "no archive");
  EXPECT_EQ(content_of(zip_of(kText, kText.size(), 0, false, "f")), "no archive");
  EXPECT_EQ(content_of(zip_of(kText, kText.size(), 14)), "refused");
}

TEST(Zip, AnEntryIsNoLongerThanAllowed) {
  const std::string archive = zip_of(kFixed, kText.size(), 8);
  std::vector<ZipEntry> entries;
  ASSERT_TRUE(read_zip({File::of_bytes(archive), 0, archive.size()}, &entries).ok());
  std::string content;
  EXPECT_EQ(entries.at(0).read(kText.size() - 1, &content).code(), StatusCode::kTooLarge);
  EXPECT_TRUE(entries.at(0).read(kText.size(), &content).ok());
}

}  // namespace
}  // namespace finitude::archive
