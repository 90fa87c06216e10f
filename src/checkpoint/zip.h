// The directory of a zip archive as torch.save writes it: entries that are stored, not compressed, also beyond 4 GiB.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_posix.h"

namespace finitude::checkpoint {

struct ZipEntry {
  std::string name;
  bool is_stored = true;  // else it is compressed or encrypted, and `data` is not its content
  Region data;
};

// Every entry lies within the archive; they may overlap, which harms nobody who only reads. Reasons are worded to
// follow the name of the file.
Status read_zip(const Region& archive, std::vector<ZipEntry>* entries);

}  // namespace finitude::checkpoint
