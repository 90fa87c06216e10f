// Where the parts of a tensor lie in the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace finitude::compare {

using Shape = std::vector<std::int64_t>;

// 0: a size is 0, or there are more than 2^40.
std::uint64_t elements_of(const Shape& shape);

// Where each part begins in a whole of `shape`: parts of one shape lie in row-major order of the dimensions that are
// smaller than those of the whole, others one behind the other in one dimension. None where they do not fill it.
std::optional<std::vector<Shape>> grid(const std::vector<Shape>& parts, const Shape& shape);

// How many parts of that shape make a whole; 0: none do.
std::size_t parts_needed(const Shape& part, const Shape& whole);

// Both contiguous, `width` bytes to an element. The part lies within the whole, which `to` has room for.
void copy_part(const std::string& from, const Shape& shape, const Shape& begins, const Shape& whole, std::size_t width,
               std::string* to);

}  // namespace finitude::compare
