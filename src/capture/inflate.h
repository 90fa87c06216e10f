// The decompression of DEFLATE (RFC 1951), the method of the entries of a packed capsule. Hostile input: reads only
// `deflated`, writes no more than `size_bytes`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "finitude/status.h"

namespace finitude::capture {

// *bytes becomes what `deflated` holds, which has to be exactly `size_bytes` long; after a failure it is unspecified.
// No checksum is part of the format: the caller checks one.
Status inflate(std::string_view deflated, std::uint64_t size_bytes, std::string* bytes);

}  // namespace finitude::capture
