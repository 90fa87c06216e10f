#include "observe/zoned_memory_torch.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "observe/guard_zones.h"
#include "observe/tracer_torch.h"

namespace finitude::observe {
namespace {

std::atomic<GuardZones*> zones = nullptr;  // leaked on purpose: tensors outlive main

void return_block(void* block) {
  if (block != nullptr) zones.load()->give(block, Tracer::open_op());
}

class GuardedAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(std::size_t size_bytes) override {
    void* const block = size_bytes == 0 ? nullptr : zones.load()->take(size_bytes, Tracer::open_op());
    TORCH_CHECK(block != nullptr || size_bytes == 0, "not enough memory: you tried to allocate ", size_bytes,
                " bytes.");
    return {block, block, &return_block, at::Device(at::DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &return_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

}  // namespace

void guard_memory() {
  if (guards_memory()) return;
  static auto* const allocator = new GuardedAllocator();
  zones = new GuardZones();
  constexpr std::uint8_t kAboveAll = 255;
  c10::SetCPUAllocator(allocator, kAboveAll);
}

bool guards_memory() noexcept { return zones.load(std::memory_order_relaxed) != nullptr; }

void look_at_guards(record::OpId op, bool at_end) noexcept {
  if (GuardZones* const guarded = zones.load(std::memory_order_relaxed)) guarded->check(op, at_end);
}

std::vector<record::GuardDamage> guard_damages() {
  const GuardZones* const guarded = zones.load();
  return guarded != nullptr ? guarded->damages() : std::vector<record::GuardDamage>();
}

}  // namespace finitude::observe
