// Compiles the SIMD kernels for every instruction set of this architecture and picks one at run time.
#include "sense/kernels.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include "sense/format.h"

// AVX3_DL has nothing that a scan could use over AVX3, and SSSE3 machines without SSE4 are gone. Vectors of
// unknown length (SVE, RVV) cannot be members of a struct, which the kernels rely on; SVE machines have NEON.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sense/kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
#include "sense/full_kernel-inl.h"
#include "sense/quick_kernel-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
const Kernels* target_kernels() { return &scalar_kernels(); }
#else
const Kernels* target_kernels() {
  static const Kernels kTable{
      hwy::TargetName(HWY_TARGET), quick_kernel<std::int64_t>, quick_kernel<std::int32_t>,
      quick_kernel<std::int16_t>,  quick_kernel<std::uint8_t>, quick_kernel<std::uint8_t, true>,
      full_kernel<Float64Lanes>,   full_kernel<Float32Lanes>,  full_kernel<Float16Lanes>,
      full_kernel<BFloat16Lanes>,
  };
  return &kTable;
}
#endif

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace finitude::sense {
HWY_EXPORT(target_kernels);
namespace {

// We keep our own choice: Highway's is shared with every other user of it in the process.
const Kernels* kernels_of(std::int64_t target) noexcept {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  static_cast<void>(target);
  return HWY_STATIC_DISPATCH(target_kernels)();
#else
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return HWY_DISPATCH_TABLE(target_kernels)[chosen.GetIndex()]();
#endif
}

struct Compiled {
  std::array<const char*, 16> names{};
  std::size_t count = 0;

  Compiled() noexcept {
    for (std::int64_t left = HWY_TARGETS; left != 0 && count + 1 < names.size(); left &= left - 1) {
      const std::int64_t target = left & -left;
      if (target != HWY_SCALAR) names[count++] = hwy::TargetName(target);
    }
    names[count++] = scalar_kernels().isa;
  }
};

struct Available {
  std::array<const Kernels*, 16> tables{};
  std::size_t count = 0;

  Available() noexcept {
    for (std::int64_t left = HWY_SUPPORTED_TARGETS & HWY_TARGETS; left != 0 && count + 1 < tables.size();
         left &= left - 1) {
      const Kernels* table = kernels_of(left & -left);  // lower bits are better targets
      if (table != &scalar_kernels()) tables[count++] = table;
    }
    tables[count++] = &scalar_kernels();
  }
};

bool same_name(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

}  // namespace

std::span<const char* const> compiled_isas() noexcept {
  static const Compiled compiled;
  return {compiled.names.data(), compiled.count};
}

std::span<const Kernels* const> available_kernels() noexcept {
  static const Available available;
  return {available.tables.data(), available.count};
}

const Kernels& choose_kernels(std::string_view forced) noexcept {
  for (const Kernels* table : available_kernels()) {
    if (same_name(table->isa, forced)) return *table;
  }
  return *available_kernels().front();
}

constinit std::atomic<const Kernels*> chosen_kernels{nullptr};

// Two first calls at once find the same answer, so a plain store is enough.
const Kernels& choose_kernels_now() noexcept {
  const char* forced = std::getenv("FINITUDE_FORCE_ISA");
  const Kernels& table = choose_kernels(forced == nullptr ? std::string_view() : std::string_view(forced));
  chosen_kernels.store(&table, std::memory_order_release);
  return table;
}

}  // namespace finitude::sense
#endif  // HWY_ONCE
