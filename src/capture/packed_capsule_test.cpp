#include "capture/packed_capsule.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace finitude::capture {
namespace {

struct Member {
  std::string name, content;
  std::uint32_t mode = 0100644;
  std::uint16_t flags = 0, method = 0;
  std::uint64_t size_bytes = content.size();
  bool is_zip64 = false;
};

void put(std::string* bytes, std::uint64_t value, int size_bytes) {
  for (int i = 0; i < size_bytes; ++i) bytes->push_back(static_cast<char>(value >> (8 * i)));
}

// As Python's zipfile writes it.
std::string archive_of(const std::vector<Member>& members) {
  std::string bytes, directory;
  for (const Member& member : members) {
    const std::uint64_t offset = bytes.size();
    bytes += "PK\x03\x04";
    bytes.append(22, '\0');
    put(&bytes, member.name.size(), 2);
    put(&bytes, 0, 2);
    bytes += member.name + member.content;
    const std::uint64_t elsewhere = 0xffffffff;
    directory += "PK\x01\x02";
    put(&directory, 0, 4);
    put(&directory, member.flags, 2);
    put(&directory, member.method, 2);
    put(&directory, 0, 8);
    put(&directory, member.is_zip64 ? elsewhere : member.content.size(), 4);
    put(&directory, member.is_zip64 ? elsewhere : member.size_bytes, 4);
    put(&directory, member.name.size(), 2);
    put(&directory, member.is_zip64 ? 20 : 0, 2);
    put(&directory, 0, 6);
    put(&directory, std::uint64_t{member.mode} << 16, 4);
    put(&directory, offset, 4);
    directory += member.name;
    if (!member.is_zip64) continue;
    put(&directory, 1, 2);
    put(&directory, 16, 2);
    put(&directory, member.size_bytes, 8);
    put(&directory, member.content.size(), 8);
  }
  const std::uint64_t offset = bytes.size();
  bytes += directory + "PK\x05\x06";
  put(&bytes, 0, 4);
  put(&bytes, members.size(), 2);
  put(&bytes, members.size(), 2);
  put(&bytes, directory.size(), 4);
  put(&bytes, offset, 4);
  put(&bytes, 0, 2);
  return bytes;
}

std::string why_not(const std::vector<Member>& members) {
  return PackedCapsule().open_bytes(archive_of(members)).why();
}

TEST(PackedCapsule, GivesEachFileByItsName) {
  PackedCapsule capsule;
  ASSERT_TRUE(capsule
                  .open_bytes(archive_of({{"capsule.json", "{}"},
                                          {.name = "tape.bin", .content = "tape", .is_zip64 = true},
                                          {"statistics.bin", ""}}))
                  .ok());
  std::string bytes;
  ASSERT_TRUE(capsule.read("tape.bin", 4, &bytes).ok());
  EXPECT_EQ(bytes, "tape");
  ASSERT_TRUE(capsule.read("statistics.bin", 0, &bytes).ok());
  EXPECT_EQ(bytes, "");
  EXPECT_EQ(capsule.read("tape.bin", 3, &bytes).code(), StatusCode::kTooLarge);
  EXPECT_EQ(capsule.read("start.safetensors", 3, &bytes).code(), StatusCode::kUnreadable);
}

TEST(PackedCapsule, RefusesWhatPackNeverWrites) {
  EXPECT_EQ(why_not({{"../tape.bin", "x"}}), "holds a file that no capsule has");
  EXPECT_EQ(why_not({{"/tmp/tape.bin", "x"}}), "holds a file that no capsule has");
  EXPECT_EQ(why_not({{"tape.bin", "x"}, {"tape.bin", "y"}}), "holds tape.bin twice");
  EXPECT_EQ(why_not({{.name = "tape.bin", .content = "/etc/passwd", .mode = 0120777}}),
            "holds tape.bin as something else than a file");
  EXPECT_EQ(why_not({{.name = "tape.bin", .content = "x", .flags = 1}}),
            "is encrypted, or compressed in an unusual way");
  EXPECT_EQ(why_not({{.name = "tape.bin", .content = "x", .method = 14}}),
            "is encrypted, or compressed in an unusual way");
  EXPECT_NE(why_not({{.name = "tape.bin", .content = "x", .size_bytes = 2}}), "");
  EXPECT_EQ(
      why_not({{.name = "tape.bin", .content = "x", .method = 8, .size_bytes = kMaxUnpacked + 1, .is_zip64 = true}}),
      "holds more than 4096 MiB");
}

TEST(PackedCapsule, RefusesTruncatedArchives) {
  const std::string whole = archive_of({{"capsule.json", "{}"}, {"tape.bin", "tape"}});
  ASSERT_TRUE(PackedCapsule().open_bytes(whole).ok());
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(PackedCapsule().open_bytes(whole.substr(0, length)).ok()) << length;
}

TEST(PackedCapsule, DamagedArchivesStayWithinTheirBounds) {
  const std::string whole = archive_of({{"capsule.json", "{}"},
                                        {.name = "tape.bin",
                                         .content = std::string("\x2b\x49\x2c\x48\x55\x28\x41\x25\0", 9),
                                         .method = 8,
                                         .size_bytes = 20,
                                         .is_zip64 = true}});
  std::mt19937 draw(5);
  int opened = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string archive = whole;
    for (unsigned i = 0; i <= draw() % 3; ++i) archive[draw() % archive.size()] = static_cast<char>(draw());
    PackedCapsule capsule;
    if (!capsule.open_bytes(std::move(archive)).ok()) continue;
    ++opened;
    std::string bytes;
    EXPECT_TRUE(!capsule.read("tape.bin", 20, &bytes).ok() || bytes.size() <= 20);
  }
  EXPECT_GT(opened, 1'000);
}

}  // namespace
}  // namespace finitude::capture
