// What a dump holds of operators beside their statistics: checksums, and values. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "record/trace.h"

namespace finitude::record {

struct KeptValue {
  std::optional<std::uint64_t> checksum;     // of the elements in row-major order
  int scalar_type = 0;                       // as torch counts them
  std::shared_ptr<const std::string> bytes;  // the elements in that order, once for all that are alike; null: not kept
};

// As Op::inputs and Op::outputs.
struct KeptCall {
  std::vector<KeptValue> inputs, outputs;
};

using KeptCalls = std::unordered_map<OpId, KeptCall>;

}  // namespace finitude::record
