#include "compare/part_grid.h"

#include <algorithm>
#include <cstring>

namespace finitude::compare {
namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 40;

}  // namespace

std::uint64_t elements_of(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::int64_t size : shape) {
    if (size <= 0 || product > kMostElements / static_cast<std::uint64_t>(size)) return 0;
    product *= static_cast<std::uint64_t>(size);
  }
  return product;
}

std::optional<std::vector<Shape>> grid(const std::vector<Shape>& parts, const Shape& shape) {
  if (parts.empty()) return std::nullopt;
  const Shape& first = parts[0];
  if (first.size() != shape.size()) return std::nullopt;
  bool is_uniform = true;
  for (const Shape& part : parts) is_uniform &= part == first;
  std::vector<std::size_t> along;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!is_uniform || first[d] != shape[d]) {
      const bool differs = std::any_of(parts.begin(), parts.end(), [&](const Shape& part) {
        return part.size() != shape.size() || part[d] != shape[d];
      });
      if (differs) along.push_back(d);
    }
  }
  std::vector<Shape> begins(parts.size(), Shape(shape.size(), 0));
  if (!is_uniform) {  // of other sizes, along one dimension
    if (along.size() != 1) return std::nullopt;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      begins[i][along[0]] = at;
      at += parts[i][along[0]];
    }
    return at == shape[along[0]] ? std::optional(begins) : std::nullopt;
  }
  std::uint64_t needed = 1;
  for (const std::size_t d : along) {
    if (first[d] <= 0 || shape[d] % first[d] != 0) return std::nullopt;
    needed *= static_cast<std::uint64_t>(shape[d] / first[d]);
    if (needed > parts.size()) return std::nullopt;
  }
  if (needed != parts.size()) return std::nullopt;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::size_t rest = i;
    for (auto d = along.rbegin(); d != along.rend(); ++d) {
      const auto many = static_cast<std::size_t>(shape[*d] / first[*d]);
      begins[i][*d] = static_cast<std::int64_t>(rest % many) * first[*d];
      rest /= many;
    }
  }
  return begins;
}

std::size_t parts_needed(const Shape& part, const Shape& whole) {
  if (part.size() != whole.size()) return 0;
  std::uint64_t needed = 1;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (part[d] <= 0 || whole[d] % part[d] != 0) return 0;
    needed *= static_cast<std::uint64_t>(whole[d] / part[d]);
    if (needed > kMostElements) return 0;
  }
  return static_cast<std::size_t>(needed);
}

void copy_part(const std::string& from, const Shape& shape, const Shape& begins, const Shape& whole, std::size_t width,
               std::string* to) {
  const std::size_t dims = shape.size();
  const std::size_t run = (dims == 0 ? 1 : static_cast<std::size_t>(shape[dims - 1])) * width;
  Shape at(dims, 0);
  for (std::size_t read = 0; run != 0 && read + run <= from.size(); read += run) {
    std::size_t element = 0;
    for (std::size_t d = 0; d < dims; ++d)
      element = element * static_cast<std::size_t>(whole[d]) + static_cast<std::size_t>(begins[d] + at[d]);
    std::memcpy(to->data() + element * width, from.data() + read, run);
    for (std::size_t d = dims < 2 ? 0 : dims - 1; d-- > 0;) {  // the next run
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

}  // namespace finitude::compare
