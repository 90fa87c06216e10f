// The buffers of every model that a recorder watches. A step of one optimizer runs through the models of others (a
// generator's step through the discriminator), so they are copied, judged and put back all together, the caller that
// steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "finitude/recorder.h"
#include "observe/buffer_snapshot_torch.h"
#include "observe/seen_torch.h"

namespace finitude::recorder {

struct Buffer {
  std::string name;
  at::Tensor tensor;
  std::uint32_t owner = 0;  // ordinal of the optimizer that it was named with
  bool had_nan = false;     // at the last step that was good, or that was reported of
};

class Buffers {
 public:
  // Of tensors no reference is kept. A name that another model's buffer has already is reported apart by its owner.
  void add(std::uint32_t owner, const NamedTensors& named);
  void forget(std::uint32_t owner);

  // Copies all of them as a step begins.
  void begin_step();
  // As they were then.
  void put_back() noexcept { copies_.restore(); }
  // Holds one NaN that held none at the last good step?
  bool turned_nan() noexcept;
  // A step was reported of: what holds NaN from here on is not news.
  void settle() noexcept;

  // Those that are still there.
  std::vector<Buffer> live() const;
  // Holds other bits than as the step began?
  bool is_written(const Buffer& buffer) const;
  const observe::BufferSnapshot& at_start() const { return copies_; }

 private:
  struct Known {
    std::string name;
    observe::WeakTensor tensor;
    std::uint32_t owner;
    bool is_new = true, had_nan = false;
  };
  std::vector<Known> known_;
  observe::BufferSnapshot copies_;
};

bool holds_nan(const at::Tensor& tensor) noexcept;

}  // namespace finitude::recorder
