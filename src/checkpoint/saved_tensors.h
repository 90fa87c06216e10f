// The tensors that a pickle of torch.save describes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/pickle.h"

namespace finitude::checkpoint {

// A tensor whose storage is named and not found yet. `view.storage` is not set.
struct SavedTensor {
  Tensor view;
  std::string storage_key;
  ElementType type;
  std::uint64_t storage_elements = 0;  // as the pickle says
};

// All tensors that the root of the pickle reaches, named by the path to them. A tensor that several paths reach is
// named by each. kCorrupt: one has a description that cannot be; kTooLarge: there are paths without end.
Status find_tensors(const Pickle& pickle, std::vector<SavedTensor>* tensors);

// "float32" or "torch.float32".
std::optional<ElementType> element_type(std::string_view name);

// What the name of a tensor says of its sign.
Sign sign_of(std::string_view name);

}  // namespace finitude::checkpoint
