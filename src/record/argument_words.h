// Arguments of operators that are numbers of an enumeration: by the names that PyTorch's users know.
#pragma once

#include <string>
#include <string_view>

namespace finitude::record {

// "float32" for the "6" of an argument `dtype`; also of layouts and memory formats. Any other text is returned as it
// is.
std::string argument_word(std::string_view argument, std::string text);

}  // namespace finitude::record
