// Did the second run compute what the first did? Where it comes out finite, that decides whether the bad value was a
// passing one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "observe/seen_torch.h"
#include "recorder/buffers_torch.h"
#include "recorder/losses_torch.h"

namespace finitude::recorder {

// What the closure named by Recorder::input, as it was called.
using NamedInputs = std::vector<std::pair<std::string, observe::WeakTensor>>;

// What a run left, by name: its losses, inputs, gradients and the buffers that it changed.
struct RunFacts {
  struct Value {
    std::string name;
    std::uint64_t sum = 0;
    bool finite = false;
    bool is_distinctive = false;  // finite, and not one number all over, which other data might give as well
  };
  std::vector<Value> values;
  std::vector<std::string> generators;
  std::uint64_t graph = 0;  // of the operators below the loss, in their order; 0: there is none
  std::string bad_input;    // "images held 3 NaN": empty where none did
};

RunFacts facts_of(const std::vector<Loss>& losses, const at::Tensor& returned, const NamedInputs& inputs,
                  const Watched& watched, const Buffers& buffers, const Generators& generators);

// To be reported of a second run that came out finite. kSame: whatever was finite in the first run has the same bits,
// and there was something that depends on the data. kOther: `what` says which differs. kUnknown: there was nothing to
// compare.
enum class Sameness : std::uint8_t { kSame, kOther, kUnknown };
Sameness compare(const RunFacts& first, const RunFacts& second, std::string* what);

}  // namespace finitude::recorder
