// How tensors of a checkpoint are described.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cli/commands.h"

namespace finitude::cli {

// Of a piece of a tensor, the shape of all of it.
const std::vector<std::int64_t>& whole_shape(const checkpoint::Tensor& tensor);
// "float32 [512, 64]"
std::string described(const checkpoint::Checkpoint& checkpoint, const checkpoint::Tensor& tensor);
// "[17, 4]"
std::string shown_list(const std::vector<std::int64_t>& numbers);
// "1.2 GB"
std::string shown_bytes(std::uint64_t bytes);
std::string shown_number(double value);
// What comes from a file, for a terminal.
std::string shown(const std::string& text, const Console& console);

}  // namespace finitude::cli
