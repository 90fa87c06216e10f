#include "capture/packed_capsule.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

#include "capture/capsule_files.h"
#include "capture/inflate.h"

namespace finitude::capture {
namespace {

constexpr std::string_view kFileMagic = "PK\x03\x04", kEntryMagic = "PK\x01\x02", kEndMagic = "PK\x05\x06";
constexpr std::size_t kFileHeader = 30, kEntryHeader = 46, kEnd = 22;  // bytes
constexpr std::uint32_t kInZip64 = 0xffffffff;                         // the number is in the zip64 field
constexpr std::uint16_t kZip64 = 1, kEncrypted = 1, kStored = 0, kDeflated = 8;
constexpr std::uint32_t kKindMask = 0170000, kPlainFile = 0100000;  // of st_mode

Status damaged(const std::string& why) { return {StatusCode::kCorrupt, "is not a packed capsule, or damaged: " + why}; }

// The number of `size_bytes` bytes at `at`, which is within.
std::uint64_t number(std::string_view bytes, std::size_t at, std::size_t size_bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = size_bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

struct Header {
  std::string_view name;
  std::uint64_t size_bytes, packed_bytes, offset;
  std::uint16_t flags, method;
  std::uint32_t mode;  // st_mode, or 0
  std::size_t length;  // of the header itself
};

// Numbers that do not fit into the header, from its extra fields.
bool read_zip64(std::string_view extra, Header* header) {
  while (extra.size() >= 4) {
    const std::uint64_t id = number(extra, 0, 2), length = number(extra, 2, 2);
    if (length > extra.size() - 4) return false;
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != kZip64) continue;
    for (std::uint64_t* value : {&header->size_bytes, &header->packed_bytes, &header->offset}) {
      if (*value != kInZip64) continue;
      if (field.size() < 8) return false;
      *value = number(field, 0, 8);
      field.remove_prefix(8);
    }
  }
  return true;
}

// The first entry of the rest of a directory.
bool read_header(std::string_view rest, Header* header) {
  if (rest.size() < kEntryHeader || !rest.starts_with(kEntryMagic)) return false;
  const std::size_t name = number(rest, 28, 2), extra = number(rest, 30, 2), comment = number(rest, 32, 2);
  *header = {.name = {},
             .size_bytes = number(rest, 24, 4),
             .packed_bytes = number(rest, 20, 4),
             .offset = number(rest, 42, 4),
             .flags = static_cast<std::uint16_t>(number(rest, 8, 2)),
             .method = static_cast<std::uint16_t>(number(rest, 10, 2)),
             .mode = static_cast<std::uint32_t>(number(rest, 38, 4) >> 16),
             .length = kEntryHeader + name + extra + comment};
  if (header->length > rest.size()) return false;
  header->name = rest.substr(kEntryHeader, name);
  return read_zip64(rest.substr(kEntryHeader + name, extra), header);
}

// The content of an entry as it lies in the archive; its own header has to agree with that of the directory.
bool find_content(std::string_view archive, const Header& header, std::string_view* content) {
  if (header.offset > archive.size()) return false;
  const std::string_view at = archive.substr(header.offset);
  if (at.size() < kFileHeader || !at.starts_with(kFileMagic)) return false;
  const std::size_t name = number(at, 26, 2), before = kFileHeader + name + number(at, 28, 2);
  if (before > at.size() || at.substr(kFileHeader, name) != header.name) return false;
  if (header.packed_bytes > at.size() - before) return false;
  *content = at.substr(before, header.packed_bytes);
  return true;
}

}  // namespace

bool is_packed_capsule(const std::string& path) noexcept {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::array<char, 4> head{};
  std::ifstream file(path, std::ios::binary);
  return file.read(head.data(), head.size()) && std::string_view(head.data(), head.size()) == kFileMagic;
}

Status PackedCapsule::open(std::string archive) {
  entries_.clear();
  archive_ = std::move(archive);
  const std::string_view all = archive_;
  // `pack` writes no comment, so the end of the directory is the end of the file.
  const std::size_t end = all.size() - std::min(all.size(), kEnd);
  if (!all.substr(end).starts_with(kEndMagic)) return damaged("it has no directory");
  const std::uint64_t count = number(all, end + 10, 2), size_bytes = number(all, end + 12, 4);
  const std::uint64_t offset = number(all, end + 16, 4);
  if (offset == kInZip64) return {StatusCode::kTooLarge, "is larger than 4 GiB: `finitude unpack` makes its folder"};
  if (offset > end || size_bytes > end - offset) return damaged("its directory lies outside of it");
  std::string_view directory = all.substr(offset, size_bytes);
  std::uint64_t left = kMaxUnpacked;
  for (std::uint64_t i = 0; i < count; ++i) {
    Header header{};
    if (!read_header(directory, &header)) return damaged("its directory");
    directory.remove_prefix(header.length);
    const std::string name(header.name);
    if (std::ranges::find(kCapsuleFiles, header.name) == kCapsuleFiles.end())
      return {StatusCode::kCorrupt, "holds a file that no capsule has"};
    if (entries_.contains(name)) return {StatusCode::kCorrupt, "holds " + name + " twice"};
    if (const std::uint32_t kind = header.mode & kKindMask; kind != 0 && kind != kPlainFile)
      return {StatusCode::kCorrupt, "holds " + name + " as something else than a file"};
    if ((header.flags & kEncrypted) != 0 || (header.method != kStored && header.method != kDeflated))
      return {StatusCode::kCorrupt, "is encrypted, or compressed in an unusual way"};
    if (header.size_bytes > left)
      return {StatusCode::kTooLarge, "holds more than " + std::to_string(kMaxUnpacked >> 20) + " MiB"};
    left -= header.size_bytes;
    Entry entry{header.size_bytes, {}, header.method == kDeflated};
    if (!find_content(all, header, &entry.packed)) return damaged("where " + name + " should be is something else");
    if (!entry.is_deflated && entry.packed.size() != entry.size_bytes) return damaged("the sizes of " + name);
    entries_.emplace(name, entry);
  }
  return {};
}

Status PackedCapsule::read(std::string_view name, std::uint64_t most_bytes, std::string* bytes) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return {StatusCode::kUnreadable, "is missing in the archive"};
  const Entry& entry = found->second;
  if (entry.size_bytes > most_bytes)
    return {StatusCode::kTooLarge, "is larger than " + std::to_string(most_bytes >> 20) + " MiB"};
  if (entry.is_deflated) return inflate(entry.packed, entry.size_bytes, bytes);
  bytes->assign(entry.packed);
  return {};
}

}  // namespace finitude::capture
