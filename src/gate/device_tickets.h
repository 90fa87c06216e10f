// What a loss on a device is known by until its value is read.
#pragma once

#include <array>
#include <cstdint>

namespace finitude::bindings {

struct OptimizerEntry;

// The losses of a window, on each optimizer's list: a ticket per optimizer.
struct DeviceTickets {
  struct Ticket {
    const OptimizerEntry* entry = nullptr;
    std::uint64_t number = 0;
  };
  std::array<Ticket, 4> of;  // further optimizers do not watch this loss
  std::uint32_t count = 0;
  bool pending = false;  // the value is not known yet
};

}  // namespace finitude::bindings
