// A zip archive, as torch.save and `finitude pack` write it, also beyond 4 GiB. Hostile input: every entry lies within
// the archive, and one that is decompressed is exactly as long as the directory says. Entries may overlap, which harms
// nobody who only reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "archive/file_posix.h"

namespace finitude::archive {

struct ZipEntry {
  enum class Method { kStored, kDeflated, kOther };  // kOther: compressed in another way, or encrypted

  std::string name;
  Method method = Method::kStored;
  std::uint64_t bytes = 0;  // of its content
  std::uint32_t mode = 0;   // st_mode as the writer saw it; 0: not known
  Region packed;            // its content where it is stored

  // *content becomes all of it, which has at most so many bytes; after a failure it is unspecified. No checksum is
  // compared: what is read from archives has its own.
  Status read(std::uint64_t most_bytes, std::string* content) const;
};

// The entries in the order of the directory. Reasons are worded to follow the name of the file.
Status read_zip(const Region& archive, std::vector<ZipEntry>* entries);

}  // namespace finitude::archive
