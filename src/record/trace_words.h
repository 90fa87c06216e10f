// The words that the trace file uses for enums and flags, for the writer and the reader.
#pragma once

#include <array>
#include <string_view>

#include "record/trace.h"

namespace finitude::record {

inline constexpr std::array<std::string_view, 7> kOriginWords = {"unknown",  "parameter", "buffer",  "optimizer_state",
                                                                 "gradient", "batch",     "constant"};
inline constexpr std::array<std::string_view, 4> kPhaseWords = {"forward", "backward", "optimizer", "data"};

struct FlagWord {
  std::string_view word;
  bool Op::*flag;
};
inline constexpr std::array<FlagWord, 6> kFlagWords = {{{"is_node", &Op::is_node},
                                                        {"view", &Op::is_view},
                                                        {"allocates", &Op::allocates},
                                                        {"random", &Op::random},
                                                        {"failed", &Op::failed},
                                                        {"captured", &Op::captured}}};

}  // namespace finitude::record
