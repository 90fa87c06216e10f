// Which element of a tensor lies where in its storage.
#pragma once

#include <cstdint>
#include <vector>

namespace finitude::checkpoint {

// One past the last element of the storage that such a tensor reaches, less its offset; 0: it is empty. False: that is
// no number of 63 bits.
bool span_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::uint64_t* span);

// Row-major strides.
std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape);

// The indices of the element that has this place in row-major order.
std::vector<std::int64_t> indices_of(std::uint64_t place, const std::vector<std::int64_t>& shape);

// From places in the storage to elements of a tensor.
class View {
 public:
  View(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides);

  std::uint64_t elements() const noexcept { return elements_; }
  // Row-major without gaps: the n-th element lies at place n.
  bool is_contiguous() const noexcept { return is_contiguous_; }
  // Each place of the span is one element, in whatever order.
  bool is_dense() const noexcept { return is_dense_; }

  struct Found {
    std::uint64_t count = 0;  // elements at that place
    std::uint64_t first = 0;  // the first of them in row-major order
  };
  // Elements at a place, counted from the first element. *effort is reduced; at 0 the search ends with what it has.
  Found find(std::uint64_t place, std::uint64_t* effort) const;

 private:
  struct Dimension {
    std::uint64_t size, stride, rank_stride;  // rank_stride: in row-major order
    std::uint64_t reach;                      // of this dimension and the smaller ones
  };
  void search(std::size_t dimension, std::uint64_t rest, std::uint64_t rank, std::uint64_t* effort, Found* found) const;

  std::vector<Dimension> dimensions_;  // by stride, the largest first; without those of size 1 and of stride 0
  std::uint64_t elements_ = 1, repeats_ = 1;
  bool is_contiguous_ = true, is_dense_ = true;
};

}  // namespace finitude::checkpoint
