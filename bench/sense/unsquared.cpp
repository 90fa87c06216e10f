#include "sense/unsquared.h"

#include <cstring>

#include "sense/targets-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sense/unsquared.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
#include "sense/full_kernel-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace finitude::bench::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
sense::FullKernel kernel_of_target(const char*, sense::DType) { return nullptr; }
#else
namespace target = sense::HWY_NAMESPACE;

template <class F>
struct Unsquared : F {
  static constexpr bool kSquares = false;
};

// Null if this is not the instruction set of that name.
sense::FullKernel kernel_of_target(const char* isa, sense::DType dtype) {
  if (std::strcmp(isa, hwy::TargetName(HWY_TARGET)) != 0) return nullptr;
  switch (dtype) {
    case sense::DType::kFloat64:
      return target::full_kernel<Unsquared<target::Float64Lanes> >;
    case sense::DType::kFloat16:
      return target::full_kernel<Unsquared<target::Float16Lanes> >;
    case sense::DType::kBFloat16:
      return target::full_kernel<Unsquared<target::BFloat16Lanes> >;
    default:
      return target::full_kernel<Unsquared<target::Float32Lanes> >;
  }
}
#endif

}  // namespace finitude::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace finitude::bench {
namespace {
constexpr sense::OfTarget<sense::FullKernel(const char*, sense::DType)> kTargets[] =
    FINITUDE_OF_TARGETS(kernel_of_target);
}

sense::FullKernel unsquared_kernel(sense::DType dtype) { return sense::best_of(kTargets)(sense::kernels().isa, dtype); }

}  // namespace finitude::bench
#endif
