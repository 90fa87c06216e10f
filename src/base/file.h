// Whole files as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/status.h"

namespace finitude::base {

// The reason is worded to follow the name of the file. `most` in bytes.
Status read_file(const std::string& path, std::string* bytes, std::uint64_t most = std::uint64_t{1} << 40);
// A file of these parts, in order, whole or as it was: written under another name beside it first, which ends with
// `beside`. What is there already and no plain file (a link, a device) is written as it is. The reason as above; errno
// is that of the system.
Status write_whole(const std::string& path, const std::vector<std::string_view>& parts,
                   std::string_view beside = ".partial");

}  // namespace finitude::base
