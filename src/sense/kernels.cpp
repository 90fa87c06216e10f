// Compiles the SIMD kernels for every instruction set of this architecture and picks one at run time.
#include "sense/kernels.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>

#include "sense/format.h"
#include "sense/targets-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sense/kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
#include "sense/full_kernel-inl.h"
#include "sense/norm_kernel-inl.h"
#include "sense/quick_kernel-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace finitude::sense::HWY_NAMESPACE {

// The name of a namespace is N_ and that of the target.
#if HWY_TARGET == HWY_SCALAR
constexpr Kernels kTable{};
#else
constexpr Kernels kTable{
    HWY_STR(HWY_NAMESPACE) + 2, quick_kernel<std::int64_t>, quick_kernel<std::int32_t>,
    quick_kernel<std::int16_t>, quick_kernel<std::uint8_t>, quick_kernel<std::uint8_t, true>,
    full_kernel<Float64Lanes>,  full_kernel<Float32Lanes>,  full_kernel<Float16Lanes>,
    full_kernel<BFloat16Lanes>, norm_kernel<Float64Lanes>,  norm_kernel<Float32Lanes>,
    norm_kernel<Float16Lanes>,  norm_kernel<BFloat16Lanes>,
};
#endif

}  // namespace finitude::sense::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace finitude::sense {
namespace {

constexpr OfTarget<Kernels> kTargets[] = FINITUDE_OF_TARGETS(kTable);

// use(target) for each that this build holds, best first.
template <class Use>
void for_each_target(Use use) noexcept {
  const Kernels* last = nullptr;
  for (const OfTarget<Kernels>& target : kTargets) {
    if (target.value != nullptr && target.value != last && target.value->isa != nullptr) use(target);
    last = target.value;
  }
}

struct Compiled {
  std::array<const char*, std::size(kTargets) + 1> names{};
  std::size_t count = 0;

  Compiled() noexcept {
    for_each_target([this](const auto& target) { names[count++] = target.value->isa; });
    names[count++] = scalar_kernels().isa;
  }
};

struct Available {
  std::array<const Kernels*, std::size(kTargets) + 1> tables{};
  std::size_t count = 0;

  Available() noexcept {
    for_each_target([this](const auto& target) {
      if (target.runs()) tables[count++] = target.value;
    });
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
