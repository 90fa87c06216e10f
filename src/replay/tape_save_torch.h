// Tensors of a replay as a safetensors file.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "finitude/status.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {

// Row-major, sparse ones made dense. A name that comes twice gets a number behind it. Formats that safetensors
// has no word for are reported as "cannot be saved".
Status save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors);

// "F32"; null where there is none.
const char* safetensors_word(c10::ScalarType dtype);

}  // namespace finitude::replay
