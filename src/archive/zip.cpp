#include "archive/zip.h"

#include <zlib.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace finitude::archive {
namespace {

constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kCentralBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kMaxDirectory = std::uint64_t{1} << 28;
constexpr std::size_t kMaxComment = 65535;
constexpr std::uint64_t kEncrypted = 1, kStored = 0, kDeflated = 8;

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

// zlib's own state, freed with it. Raw: an entry has no header of zlib's.
class Inflater {
 public:
  Inflater() : is_open_(::inflateInit2(&stream_, -MAX_WBITS) == Z_OK) {}
  ~Inflater() {
    if (is_open_) ::inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // `into` has to be filled exactly, by all of `packed`.
  bool run(std::string& packed, std::string& into) {
    if (!is_open_) return false;
    std::size_t given = 0, made = 0;
    int rc = Z_OK;
    while (rc == Z_OK) {
      // zlib counts in 32 bits.
      const auto in = static_cast<uInt>(std::min<std::size_t>(packed.size() - given, 1U << 30));
      const auto out = static_cast<uInt>(std::min<std::size_t>(into.size() - made, 1U << 30));
      stream_.next_in = reinterpret_cast<Bytef*>(packed.data() + given);
      stream_.avail_in = in;
      stream_.next_out = reinterpret_cast<Bytef*>(into.data() + made);
      stream_.avail_out = out;
      rc = ::inflate(&stream_, Z_NO_FLUSH);  // Z_BUF_ERROR, and so the end, where neither is left
      given += in - stream_.avail_in;
      made += out - stream_.avail_out;
    }
    return rc == Z_STREAM_END && made == into.size() && given == packed.size();
  }

 private:
  z_stream stream_{};
  bool is_open_;
};

}  // namespace

Status ZipEntry::read(std::uint64_t most_bytes, std::string* content) const {
  // DEFLATE shrinks by at most 1032: what claims more is not decompressed, and no memory is taken for it.
  constexpr std::uint64_t kMostRatio = 1032;
  if (bytes > most_bytes)
    return Status(StatusCode::kTooLarge, "is larger than " + std::to_string(most_bytes >> 20) + " MiB");
  if (method == Method::kOther) return Status(StatusCode::kUnsupported, "is encrypted, or compressed in another way");
  if (method == Method::kStored) return packed.read_all(most_bytes, content);
  if (bytes / kMostRatio > packed.bytes) return damaged("an entry has another size than its directory says");
  std::string deflated;
  if (Status status = packed.read_all(packed.bytes, &deflated); !status.ok()) return status;
  content->resize(static_cast<std::size_t>(bytes));
  if (!Inflater().run(deflated, *content)) return damaged("an entry cannot be decompressed");
  return {};
}

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
    const std::uint64_t attributes = number_at(left, 38, 4);
    const std::uint64_t name_bytes = number_at(left, 28, 2), extra_bytes = number_at(left, 30, 2);
    const std::uint64_t comment_bytes = number_at(left, 32, 2);
    left.remove_prefix(kCentralBytes);
    if (name_bytes + extra_bytes + comment_bytes > left.size()) return damaged("its directory is too short");
    ZipEntry entry;
    entry.name = left.substr(0, name_bytes);
    if (!widen(left.substr(name_bytes, extra_bytes), &plain_bytes, &packed_bytes, &header))
      return damaged("an entry of its directory is not complete");
    left.remove_prefix(name_bytes + extra_bytes + comment_bytes);
    entry.bytes = plain_bytes;
    entry.mode = static_cast<std::uint32_t>(attributes >> 16);
    if ((flags & kEncrypted) != 0 || (method != kStored && method != kDeflated))
      entry.method = ZipEntry::Method::kOther;
    else
      entry.method = method == kStored ? ZipEntry::Method::kStored : ZipEntry::Method::kDeflated;
    if (method == kStored && plain_bytes != packed_bytes) return damaged("the sizes of an entry");
    // The entry's own header has to agree with the directory, or two readers would see two archives.
    std::string local(kLocalBytes + entry.name.size(), '\0');
    if (!archive.read(header, local.data(), local.size()).ok() || !local.starts_with("PK\x03\x04") ||
        number_at(local, 26, 2) != entry.name.size() || !local.ends_with(entry.name))
      return damaged("an entry is not where its directory says");
    const Result<Region> packed = archive.part(header + local.size() + number_at(local, 28, 2), packed_bytes);
    if (!packed.ok()) return damaged("an entry is not where its directory says");
    entry.packed = *packed;
    entries->push_back(std::move(entry));
  }
  return {};
}

}  // namespace finitude::archive
