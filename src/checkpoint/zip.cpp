#include "checkpoint/zip.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace finitude::checkpoint {
namespace {

constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kCentralBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kMaxDirectory = std::uint64_t{1} << 28;
constexpr std::size_t kMaxComment = 65535;

// Little-endian; the caller has checked that the bytes are there.
std::uint64_t number_at(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = 0; i < count; ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)])} << (8 * i);
  return value;
}

Status damaged(const char* what) {
  return Status(StatusCode::kCorrupt, std::string("is a damaged or cut off zip archive: ") + what);
}

struct Directory {
  std::uint64_t entries = 0, bytes = 0, offset = 0;
};

Status find_directory(const Region& archive, Directory* directory) {
  std::string tail(std::min<std::uint64_t>(archive.bytes, kMaxComment + kEndBytes + kLocatorBytes), '\0');
  if (Status status = archive.read(archive.bytes - tail.size(), tail.data(), tail.size()); !status.ok()) return status;
  const std::size_t end = tail.rfind("PK\x05\x06");
  if (end == std::string::npos || tail.size() - end < kEndBytes) return damaged("it has no directory");
  *directory = {number_at(tail, end + 10, 2), number_at(tail, end + 12, 4), number_at(tail, end + 16, 4)};
  const bool wide = directory->entries == 0xffff || directory->bytes == 0xffffffff || directory->offset == 0xffffffff;
  if (!wide) return {};
  if (end < kLocatorBytes || tail.compare(end - kLocatorBytes, 4, "PK\x06\x07") != 0)
    return damaged("its directory cannot be found");
  std::string end64(kEnd64Bytes, '\0');
  const std::uint64_t at = number_at(tail, end - kLocatorBytes + 8, 8);
  if (Status status = archive.read(at, end64.data(), end64.size()); !status.ok()) return status;
  if (!end64.starts_with("PK\x06\x06")) return damaged("its directory cannot be found");
  *directory = {number_at(end64, 32, 8), number_at(end64, 40, 8), number_at(end64, 48, 8)};
  return {};
}

// Sizes and offsets of 64 bits, where the plain fields are full: in the extra field 1, in the order of the fields.
bool widen(std::string_view extra, std::uint64_t* plain_bytes, std::uint64_t* packed_bytes, std::uint64_t* header) {
  while (extra.size() >= 4) {
    const std::uint64_t id = number_at(extra, 0, 2), size = number_at(extra, 2, 2);
    extra.remove_prefix(4);
    if (size > extra.size()) return false;
    std::string_view field = extra.substr(0, size);
    extra.remove_prefix(size);
    if (id != 1) continue;
    for (std::uint64_t* value : {plain_bytes, packed_bytes, header}) {
      if (*value != 0xffffffff) continue;
      if (field.size() < 8) return false;
      *value = number_at(field, 0, 8);
      field.remove_prefix(8);
    }
  }
  return true;
}

}  // namespace

Status read_zip(const Region& archive, std::vector<ZipEntry>* entries) {
  entries->clear();
  Directory directory;
  if (Status status = find_directory(archive, &directory); !status.ok()) return status;
  const Result<Region> region = archive.part(directory.offset, directory.bytes);
  if (!region.ok()) return damaged("its directory lies outside");
  std::string bytes;
  if (Status status = region->read_all(kMaxDirectory, &bytes); !status.ok()) return status;
  if (directory.entries > bytes.size() / kCentralBytes) return damaged("its directory is too short");
  std::string_view left = bytes;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (left.size() < kCentralBytes || !left.starts_with("PK\x01\x02")) return damaged("its directory is too short");
    const std::uint64_t flags = number_at(left, 8, 2), method = number_at(left, 10, 2);
    std::uint64_t packed_bytes = number_at(left, 20, 4), plain_bytes = number_at(left, 24, 4);
    std::uint64_t header = number_at(left, 42, 4);
    const std::uint64_t name_bytes = number_at(left, 28, 2), extra_bytes = number_at(left, 30, 2);
    const std::uint64_t comment_bytes = number_at(left, 32, 2);
    left.remove_prefix(kCentralBytes);
    if (name_bytes + extra_bytes + comment_bytes > left.size()) return damaged("its directory is too short");
    ZipEntry entry;
    entry.name = left.substr(0, name_bytes);
    if (!widen(left.substr(name_bytes, extra_bytes), &plain_bytes, &packed_bytes, &header))
      return damaged("an entry of its directory is not complete");
    left.remove_prefix(name_bytes + extra_bytes + comment_bytes);
    entry.is_stored = method == 0 && (flags & 1) == 0 && plain_bytes == packed_bytes;
    std::string local(kLocalBytes, '\0');
    if (!archive.read(header, local.data(), local.size()).ok() || !local.starts_with("PK\x03\x04"))
      return damaged("an entry is not where its directory says");
    const Result<Region> data =
        archive.part(header + kLocalBytes + number_at(local, 26, 2) + number_at(local, 28, 2), packed_bytes);
    if (!data.ok()) return damaged("an entry is not where its directory says");
    entry.data = *data;
    entries->push_back(std::move(entry));
  }
  return {};
}

}  // namespace finitude::checkpoint
