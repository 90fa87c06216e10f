// Any layout: dimensions are put in memory order and joined, long dense runs go to the kernels where they
// lie, the rest is gathered into a small buffer first.
#include <cstring>

#include "finitude/scan.h"
#include "sense/format.h"
#include "sense/norm_scan.h"

namespace finitude::sense {
namespace {

struct Dim {
  std::uint64_t size;
  std::int64_t stride;  // in elements
};

// No tensor has more dimensions of size 2 and up: its numel fits 63 bits.
constexpr int kMaxDims = 64;

struct Layout {
  Dim dims[kMaxDims];  // outermost first
  int ndim = 0;
  std::uint64_t repeats = 1;  // by stride-0 dimensions: the same elements again
  bool empty = false;
};

std::uint64_t distance(std::int64_t stride) noexcept {
  return stride < 0 ? 0 - static_cast<std::uint64_t>(stride) : static_cast<std::uint64_t>(stride);
}

// Dimensions are sorted by stride, which no count or extreme can notice.
Layout coalesce(const std::int64_t* sizes, const std::int64_t* strides, int ndim) noexcept {
  Layout layout;
  for (int i = 0; i < ndim; ++i) {
    if (sizes[i] <= 0) layout.empty = true;
  }
  if (layout.empty) return layout;
  for (int i = 0; i < ndim; ++i) {
    const auto size = static_cast<std::uint64_t>(sizes[i]);
    if (size == 1) continue;
    if (strides[i] == 0) {
      layout.repeats *= size;
      continue;
    }
    if (layout.ndim == kMaxDims) {
      layout.empty = true;
      return layout;
    }
    int at = layout.ndim++;
    for (; at > 0 && distance(layout.dims[at - 1].stride) < distance(strides[i]); --at) {
      layout.dims[at] = layout.dims[at - 1];
    }
    layout.dims[at] = {size, strides[i]};
  }
  int kept = 0;
  for (int i = 1; i < layout.ndim; ++i) {
    Dim& outer = layout.dims[kept];
    const Dim inner = layout.dims[i];
    if (outer.stride == inner.stride * static_cast<std::int64_t>(inner.size)) {
      outer = {outer.size * inner.size, inner.stride};
    } else {
      layout.dims[++kept] = inner;
    }
  }
  if (layout.ndim > 0) layout.ndim = kept + 1;
  return layout;
}

template <std::size_t kSize>
void gather(unsigned char* to, const unsigned char* from, std::int64_t stride_bytes, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * kSize, from + static_cast<std::int64_t>(i) * stride_bytes, kSize);
  }
}

void gather_any(unsigned char* to, const unsigned char* from, std::int64_t stride, std::size_t count,
                std::size_t size) noexcept {
  const std::int64_t stride_bytes = stride * static_cast<std::int64_t>(size);
  switch (size) {
    case 1:
      return gather<1>(to, from, stride_bytes, count);
    case 2:
      return gather<2>(to, from, stride_bytes, count);
    case 4:
      return gather<4>(to, from, stride_bytes, count);
    case 8:
      return gather<8>(to, from, stride_bytes, count);
    default:
      return gather<16>(to, from, stride_bytes, count);
  }
}

// Calls consume(pointer, elements) on dense memory until everything was seen or it returns false.
template <typename Consume>
void for_each_dense(const void* data, const Layout& layout, std::size_t element_bytes, Consume consume) noexcept {
  constexpr std::size_t kBufferBytes = 8192;
  constexpr std::size_t kLongRunBytes = 1024;  // from here on a kernel call costs less than the copy
  alignas(64) unsigned char buffer[kBufferBytes];
  const std::size_t capacity = kBufferBytes / element_bytes;
  std::size_t filled = 0;

  const Dim inner = layout.ndim > 0 ? layout.dims[layout.ndim - 1] : Dim{1, 1};
  const int outer_dims = layout.ndim > 0 ? layout.ndim - 1 : 0;
  const bool in_place = inner.stride == 1 && (outer_dims == 0 || inner.size * element_bytes >= kLongRunBytes);
  std::uint64_t index[kMaxDims] = {};
  std::int64_t run_at = 0;  // in elements from data
  const auto address = [&](std::int64_t element) {
    return static_cast<const unsigned char*>(data) + element * static_cast<std::int64_t>(element_bytes);
  };
  for (;;) {
    if (in_place) {
      if (!consume(address(run_at), inner.size)) return;
    } else {
      for (std::uint64_t done = 0; done < inner.size;) {
        const std::size_t count = inner.size - done < capacity - filled ? inner.size - done : capacity - filled;
        gather_any(buffer + filled * element_bytes, address(run_at + static_cast<std::int64_t>(done) * inner.stride),
                   inner.stride, count, element_bytes);
        done += count;
        filled += count;
        if (filled == capacity) {
          if (!consume(buffer, filled)) return;
          filled = 0;
        }
      }
    }
    int dim = outer_dims - 1;
    for (; dim >= 0; --dim) {
      const Dim& outer = layout.dims[dim];
      run_at += outer.stride;
      if (++index[dim] < outer.size) break;
      run_at -= outer.stride * static_cast<std::int64_t>(outer.size);
      index[dim] = 0;
    }
    if (dim < 0) break;
  }
  if (filled != 0) consume(buffer, filled);
}

std::size_t element_bytes(DType dtype) noexcept {
  return info(dtype).size_bytes * static_cast<std::size_t>(info(dtype).reals_per_element);
}

}  // namespace

Health full_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides, int ndim,
                         DType dtype, Threads threads) noexcept {
  Health health;
  const Layout layout = coalesce(sizes, strides, ndim);
  if (layout.empty || element_bytes(dtype) == 0) return health;
  for_each_dense(data, layout, element_bytes(dtype), [&](const void* part, std::size_t count) {
    health = merge(health, full_scan(part, count, dtype, threads));
    return true;
  });
  if (layout.repeats != 1) {
    for (std::uint64_t* count :
         {&health.numel, &health.nan, &health.pos_inf, &health.neg_inf, &health.zero, &health.subnormal}) {
      *count *= layout.repeats;
    }
    health.sum_sq *= static_cast<double>(layout.repeats);
  }
  return health;
}

Quick quick_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides, int ndim,
                         DType dtype, Threads threads) noexcept {
  Quick quick;
  const Layout layout = coalesce(sizes, strides, ndim);
  if (layout.empty || element_bytes(dtype) == 0) return quick;
  for_each_dense(data, layout, element_bytes(dtype), [&](const void* part, std::size_t count) {
    const Quick one = quick_scan(part, count, dtype, threads);
    quick.bad = one.bad;
    if (order_key(one.absmax) > order_key(quick.absmax)) quick.absmax = one.absmax;
    return !quick.bad;
  });
  return quick;
}

Norm norm_scan_strided(const void* data, const std::int64_t* sizes, const std::int64_t* strides, int ndim, DType dtype,
                       Threads threads) noexcept {
  const Layout layout = coalesce(sizes, strides, ndim);
  if (layout.empty || element_bytes(dtype) == 0) return {};
  Squares all;
  for_each_dense(data, layout, element_bytes(dtype), [&](const void* part, std::size_t count) {
    all = merge(all, squares(part, count, dtype, threads));
    return !all.bad;
  });
  const double scale = scale_of(all, dtype);
  if (scale != 1) {
    all = {};
    for_each_dense(data, layout, element_bytes(dtype), [&](const void* part, std::size_t count) {
      all = merge(all, squares_with(kernels(), part, count, dtype, scale));
      return true;
    });
  }
  all.sum_sq *= static_cast<double>(layout.repeats);
  return norm_of(all, scale);
}

}  // namespace finitude::sense
