#include "checkpoint/views.h"

#include <algorithm>

namespace finitude::checkpoint {

bool span_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::uint64_t* span) {
  std::int64_t last = 0, elements = 1;
  bool is_empty = false, fits = true;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) {
      is_empty = true;
      continue;
    }
    std::int64_t reach = 0;
    fits &= !__builtin_mul_overflow(elements, shape[i], &elements);
    fits &= !__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) && !__builtin_add_overflow(last, reach, &last);
  }
  *span = is_empty ? 0 : static_cast<std::uint64_t>(last) + 1;
  return is_empty || fits;
}

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  std::uint64_t stride = 1;  // may wrap around where a tensor is empty
  for (std::size_t i = shape.size(); i-- > 1;) {
    stride *= static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1));
    strides[i - 1] = static_cast<std::int64_t>(stride);
  }
  return strides;
}

std::vector<std::int64_t> indices_of(std::uint64_t place, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> indices(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape[i]);
    indices[i] = static_cast<std::int64_t>(place % size);
    place /= size;
  }
  return indices;
}

View::View(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  std::uint64_t rank_stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape[i]), stride = static_cast<std::uint64_t>(strides[i]);
    elements_ *= size;
    if (size > 1) {
      is_contiguous_ &= stride == rank_stride;
      if (stride == 0) {
        repeats_ *= size;
      } else {
        dimensions_.push_back({size, stride, rank_stride, 0});
      }
    }
    rank_stride *= std::max<std::uint64_t>(size, 1);
  }
  std::sort(dimensions_.begin(), dimensions_.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  std::uint64_t reach = 0, next = 1;
  for (auto dimension = dimensions_.rbegin(); dimension != dimensions_.rend(); ++dimension) {
    is_dense_ &= dimension->stride == next;
    next = dimension->stride * dimension->size;
    dimension->reach = reach += dimension->stride * (dimension->size - 1);
  }
  is_dense_ &= repeats_ == 1;
}

View::Found View::find(std::uint64_t place, std::uint64_t* effort) const {
  Found found;
  if (elements_ != 0) search(0, place, 0, effort, &found);
  found.count *= repeats_;
  return found;
}

void View::search(std::size_t dimension, std::uint64_t rest, std::uint64_t rank, std::uint64_t* effort,
                  Found* found) const {
  if (*effort == 0) return;
  --*effort;
  if (dimension == dimensions_.size()) {
    if (rest != 0) return;
    found->first = found->count == 0 ? rank : std::min(found->first, rank);
    ++found->count;
    return;
  }
  const Dimension& d = dimensions_[dimension];
  if (rest > d.reach) return;
  // Smaller dimensions reach no farther than this one lacks.
  const std::uint64_t inner = d.reach - d.stride * (d.size - 1);
  const std::uint64_t least = rest > inner ? (rest - inner + d.stride - 1) / d.stride : 0;
  const std::uint64_t most = std::min(rest / d.stride, d.size - 1);
  for (std::uint64_t i = least; i <= most && *effort != 0; ++i)
    search(dimension + 1, rest - i * d.stride, rank + i * d.rank_stride, effort, found);
}

}  // namespace finitude::checkpoint
