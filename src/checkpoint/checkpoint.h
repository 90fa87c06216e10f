// The tensors of a checkpoint, by name: where their bytes lie and how they are laid out. Their values are not read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "archive/file_posix.h"
#include "finitude/dtype.h"
#include "finitude/status.h"

namespace finitude::checkpoint {

using archive::File;
using archive::Region;

// What torch calls a dtype, without "torch.".
struct ElementType {
  std::string name = "float32";
  sense::DType dtype = sense::DType::kFloat32;  // kOther: it has neither NaN nor Inf, or none that is known
  std::size_t bytes = 4;                        // of one element
};

// Memory that one or more tensors are views of.
struct Storage {
  Region data;
  ElementType type;
};

// Which values cannot be, finite or not.
enum class Sign : std::uint8_t {
  kAny,
  kNotNegative,  // a mean or sum of squares
};

struct Tensor {
  std::string name;       // the path of keys, "model.fc.weight"
  std::string parameter;  // of optimizer state: the parameter that it belongs to, where its name was saved
  std::size_t storage = 0;
  std::uint64_t offset = 0;              // elements of the storage before the first
  std::vector<std::int64_t> shape;       // not negative
  std::vector<std::int64_t> strides;     // in elements, not negative
  std::vector<std::int64_t> begins;      // indices of its first element in the tensor that it is a piece of; or empty
  std::vector<std::int64_t> full_shape;  // of that tensor
  Sign sign = Sign::kAny;
};

struct Checkpoint {
  std::string format;  // "torch zip", "safetensors", "DCP"
  std::vector<Storage> storages;
  std::vector<Tensor> tensors;  // each lies within its storage
};

enum class FileKind : std::uint8_t { kNone, kTorchZip, kTorchLegacy, kSafetensors, kDcpFolder, kDcpPart };

// By the first bytes and the name; kNone also of what cannot be read.
FileKind kind_of(const std::string& path);

// A file, or the folder of a DCP checkpoint. Reasons are worded to follow the path.
Result<Checkpoint> read_checkpoint(const std::string& path);

}  // namespace finitude::checkpoint
