// The checksum that capsule.json has of itself: its last member, of all that is before.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "finitude/status.h"

namespace finitude::capture {

// 16 hexadecimal digits.
std::string hex(std::uint64_t number);

// The text of a file that holds `document`, an object.
std::string with_own_checksum(nlohmann::json document);

// Whether the bytes are as they were written; document: what they hold. One of an earlier version has no checksum.
Status check_own_checksum(std::string_view bytes, const nlohmann::json& document);

}  // namespace finitude::capture
