// A capsule in one file: the zip archive that `finitude pack` writes. Hostile input: entries are taken by the few names
// that a capsule has, so no path of the archive is used; links, encryption, names that occur twice and sizes beyond
// the file's or the limit are refused. Nothing is written.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "archive/zip.h"
#include "finitude/status.h"

namespace finitude::capture {

// What all its files may take together; that of `finitude unpack` without --max-mb.
inline constexpr std::uint64_t kMaxUnpacked = std::uint64_t{4} << 30;

// Does the file begin as an archive? False also for what is no plain file.
bool is_packed_capsule(const std::string& path) noexcept;

// One object may be read from several threads.
class PackedCapsule {
 public:
  // Checks the directory of the archive, whose files take at most so many bytes together.
  Status open(const std::string& path, std::uint64_t most_bytes = kMaxUnpacked);
  Status open_bytes(std::string archive);
  // One of its files, which has at most so many bytes. Its content is not checked: capsule.json holds the checksums.
  Status read(std::string_view name, std::uint64_t most_bytes, std::string* content) const;
  // Of all its files.
  std::set<std::string> names() const;

 private:
  Status open(std::shared_ptr<const archive::File> file, std::uint64_t most_bytes);

  std::map<std::string, archive::ZipEntry, std::less<>> entries_;
};

}  // namespace finitude::capture
