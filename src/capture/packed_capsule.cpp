#include "capture/packed_capsule.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "capture/capsule_files.h"

namespace finitude::capture {
namespace {

constexpr std::string_view kFileMagic = "PK\x03\x04";
constexpr std::uint32_t kKindMask = 0170000, kPlainFile = 0100000;  // of st_mode

}  // namespace

bool is_packed_capsule(const std::string& path) noexcept {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::array<char, 4> head{};
  std::ifstream file(path, std::ios::binary);
  return file.read(head.data(), head.size()) && std::string_view(head.data(), head.size()) == kFileMagic;
}

Status PackedCapsule::open(const std::string& path, std::uint64_t most_bytes) {
  const auto file = archive::File::open(path);
  return file.ok() ? open(*file, most_bytes) : Status(file.code(), file.why());
}

Status PackedCapsule::open_bytes(std::string archive) {
  return open(archive::File::of_bytes(std::move(archive)), kMaxUnpacked);
}

std::set<std::string> PackedCapsule::names() const {
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_) names.insert(name);
  return names;
}

Status PackedCapsule::open(std::shared_ptr<const archive::File> file, std::uint64_t most_bytes) {
  entries_.clear();
  std::vector<archive::ZipEntry> entries;
  const std::uint64_t size_bytes = file->bytes();
  if (Status status = archive::read_zip({std::move(file), 0, size_bytes}, &entries); !status.ok()) return status;
  std::uint64_t left = most_bytes;
  for (archive::ZipEntry& entry : entries) {
    const std::string name = entry.name;
    if (std::ranges::find(kCapsuleFiles, name) == kCapsuleFiles.end())
      return {StatusCode::kCorrupt, "holds a file that no capsule has"};
    if (const std::uint32_t kind = entry.mode & kKindMask; kind != 0 && kind != kPlainFile)
      return {StatusCode::kCorrupt, "holds " + name + " as something else than a file"};
    if (entry.method == archive::ZipEntry::Method::kOther)
      return {StatusCode::kCorrupt, "is encrypted, or compressed in an unusual way"};
    if (entry.bytes > left)
      return {StatusCode::kTooLarge, "holds more than " + std::to_string(most_bytes >> 20) + " MiB"};
    left -= entry.bytes;
    if (!entries_.emplace(name, std::move(entry)).second) return {StatusCode::kCorrupt, "holds " + name + " twice"};
  }
  return {};
}

Status PackedCapsule::read(std::string_view name, std::uint64_t most_bytes, std::string* content) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return {StatusCode::kUnreadable, "is missing in the archive"};
  return found->second.read(most_bytes, content);
}

}  // namespace finitude::capture
