// The readers of each format. Reasons are worded to follow the name of the file.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"

namespace finitude::checkpoint {

inline constexpr std::uint64_t kMaxPickle = std::uint64_t{256} << 20;

// What torch.save wrote; also of a part of a file. Tensors and storages are added to those that are there.
Status read_torch_zip(const Region& archive, Checkpoint* checkpoint);

Status read_safetensors_file(const Region& file, Checkpoint* checkpoint);

// The folder of a DCP checkpoint.
Status read_dcp_folder(const std::string& folder, Checkpoint* checkpoint);

}  // namespace finitude::checkpoint
