// Properties over arbitrary bytes: any memory is a valid tensor, so nothing is excluded.
#if __has_include(<rapidcheck/gtest.h>)
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sense/scan_test_util.h"

namespace finitude::sense {
namespace {

DType any_dtype() { return *rc::gen::elementOf(std::vector<DType>(std::begin(kAllDTypes), std::end(kAllDTypes))); }

// Bytes that are often those of NaN, Inf, zero and subnormals.
std::vector<unsigned char> any_bytes() {
  return *rc::gen::scale(
      8, rc::gen::container<std::vector<unsigned char>>(rc::gen::weightedOneOf<unsigned char>(
             {{3, rc::gen::arbitrary<unsigned char>()},
              {2, rc::gen::elementOf(std::vector<unsigned char>{0x00, 0x80, 0x7f, 0xff, 0x7c, 0xf8, 0x01})}})));
}

RC_GTEST_PROP(ScanProperty, EveryKernelAgreesWithTheReferenceOnAnyBytes, ()) {
  const DType dtype = any_dtype();
  const auto bytes = any_bytes();
  const std::size_t shift = std::min<std::size_t>(*rc::gen::inRange(0, 8), bytes.size());
  const std::size_t numel = (bytes.size() - shift) / element_size(dtype);
  const unsigned char* data = bytes.data() + shift;
  const Health expected = reference_scan(data, numel, dtype);
  for (const Kernels* with : available_kernels()) {
    RC_ASSERT(same(full_scan_with(*with, data, numel, dtype), expected, dtype));
    RC_ASSERT(same(quick_scan_with(*with, data, numel, dtype), expected, dtype));
  }
  RC_ASSERT((first_non_finite(data, numel, dtype) == numel) == expected.ok());
}

RC_GTEST_PROP(ScanProperty, TheCountsAddUp, ()) {
  const DType dtype = any_dtype();
  const auto bytes = any_bytes();
  const std::size_t numel = bytes.size() / element_size(dtype);
  const Health health = full_scan(bytes.data(), numel, dtype);
  RC_ASSERT(health.numel == numel * static_cast<std::size_t>(info(dtype).reals_per_element));
  RC_ASSERT(health.finite() >= health.zero + health.subnormal);
  RC_ASSERT(order_key(health.min) <= order_key(health.max));
  RC_ASSERT(order_key(health.absmax) == std::max(order_key(-health.min), order_key(health.max)));
  RC_ASSERT(health.absmax <= info(dtype).max_finite);
}

RC_GTEST_PROP(ScanProperty, AnyCutMergesToTheWhole, ()) {
  const DType dtype = any_dtype();
  const auto bytes = any_bytes();
  const std::size_t numel = bytes.size() / element_size(dtype);
  const std::size_t cut = *rc::gen::inRange<std::size_t>(0, numel + 1);
  const Health front = full_scan(bytes.data(), cut, dtype);
  const Health back = full_scan(bytes.data() + cut * element_size(dtype), numel - cut, dtype);
  RC_ASSERT(same(merge(front, back), full_scan(bytes.data(), numel, dtype), dtype));
}

RC_GTEST_PROP(ScanProperty, AnyStridesAreLikeACopy, ()) {
  const DType dtype = any_dtype();
  const std::size_t element = element_size(dtype);
  const auto ndim = static_cast<std::size_t>(*rc::gen::inRange(0, 5));
  std::vector<std::int64_t> sizes(ndim), strides(ndim);
  std::size_t reach = 1;
  for (std::size_t d = 0; d < ndim; ++d) {
    sizes[d] = *rc::gen::inRange<std::int64_t>(0, 7);
    strides[d] = *rc::gen::inRange<std::int64_t>(0, 40);
    reach += static_cast<std::size_t>(std::max<std::int64_t>(sizes[d] - 1, 0) * strides[d]);
  }
  std::vector<unsigned char> memory(reach * element);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  fill(memory.data(), memory.size() / info(dtype).size_bytes, bit_format(dtype), Mix::kAll, random);
  std::vector<unsigned char> copy;
  std::size_t numel = 1;
  for (const std::int64_t size : sizes) numel *= static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < numel; ++i) {
    std::size_t rest = i, at = 0;
    for (std::size_t d = ndim; d-- > 0;) {
      at += rest % static_cast<std::size_t>(sizes[d]) * static_cast<std::size_t>(strides[d]);
      rest /= static_cast<std::size_t>(sizes[d]);
    }
    const unsigned char* from = memory.data() + at * element;
    copy.insert(copy.end(), from, from + element);
  }
  const Health expected = reference_scan(copy.data(), numel, dtype);
  const int dims = static_cast<int>(ndim);
  RC_ASSERT(same(full_scan_strided(memory.data(), sizes.data(), strides.data(), dims, dtype), expected, dtype));
  RC_ASSERT(same(quick_scan_strided(memory.data(), sizes.data(), strides.data(), dims, dtype), expected, dtype));
}

}  // namespace
}  // namespace finitude::sense
#endif  // rapidcheck
