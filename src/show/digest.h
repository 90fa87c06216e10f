// SHA-256 in base64: what a Content-Security-Policy names the page's own script and style by.
#pragma once

#include <string>
#include <string_view>

namespace finitude::show {

std::string sha256_base64(std::string_view bytes);

}  // namespace finitude::show
