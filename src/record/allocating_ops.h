// Operators that hand out memory without writing it: what it holds means nothing.
#pragma once

#include <string_view>

namespace finitude::record {

// By the name without overload: "aten::empty_like".
inline bool allocates(std::string_view op) {
  return op.starts_with("aten::empty") || op.starts_with("aten::new_empty") || op == "aten::resize_";
}

}  // namespace finitude::record
