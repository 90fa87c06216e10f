// Whole files as bytes.
#pragma once

#include <cstdint>
#include <string>

#include "finitude/status.h"

namespace finitude::base {

// The reason is worded to follow the name of the file. `most` in bytes.
Status read_file(const std::string& path, std::string* bytes, std::uint64_t most = std::uint64_t{1} << 40);

}  // namespace finitude::base
