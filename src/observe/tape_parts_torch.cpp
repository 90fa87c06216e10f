#include "observe/tape_parts_torch.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace finitude::observe {
namespace {

using capture::ByteRange;

constexpr std::size_t kMostParts = 16384;
constexpr std::uint64_t kGap = 128;  // bytes between two parts that are less than what a part of its own takes

template <typename Number>
bool add_rows(const at::Tensor& numbers, std::int64_t rows, std::vector<std::int64_t>* found) {
  const auto* data = static_cast<const Number*>(numbers.const_data_ptr());
  const std::int64_t step = numbers.dim() == 1 ? numbers.stride(0) : 1;
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    std::int64_t row = static_cast<std::int64_t>(data[i * step]);
    if (row < 0) row += rows;
    if (row < 0 || row >= rows) return false;  // an error of the program's
    found->push_back(row);
  }
  return true;
}

bool add_marked(const at::Tensor& marks, std::int64_t rows, std::vector<std::int64_t>* found) {
  if (marks.dim() != 1 || marks.numel() != rows) return false;
  const auto* data = static_cast<const bool*>(marks.const_data_ptr());
  for (std::int64_t i = 0; i < rows; ++i) {
    if (!data[i * marks.stride(0)]) continue;
    if (found->size() == kMostParts) return false;
    found->push_back(i);
  }
  return true;
}

}  // namespace

int picked_by(std::string_view op) {
  if (op == "aten::index" || op == "aten::embedding" || op == "aten::_embedding_bag" ||
      op == "aten::_embedding_bag_forward_only")
    return 1;
  return op == "aten::index_select" ? 2 : -1;
}

bool picked_rows(c10::ArrayRef<c10::IValue> inputs, int picked_by, std::vector<ByteRange>* ranges) {
  if (picked_by < 0 || static_cast<std::size_t>(picked_by) >= inputs.size() || !inputs[0].isTensor()) return false;
  const at::Tensor& table = inputs[0].toTensor();
  if (!table.defined() || table.layout() != c10::kStrided || table.dim() == 0 || table.numel() == 0) return false;
  std::int64_t along = 0;  // the dimension that the numbers count in
  if (picked_by == 2) {
    if (!inputs[1].isInt()) return false;
    along = inputs[1].toInt() < 0 ? inputs[1].toInt() + table.dim() : inputs[1].toInt();
  }
  const c10::IValue* which = &inputs[static_cast<std::size_t>(picked_by)];
  if (which->isList()) {
    const auto list = which->toListRef();
    const auto first = std::find_if(list.begin(), list.end(),
                                    [](const c10::IValue& v) { return v.isTensor() && v.toTensor().defined(); });
    if (first == list.end()) return false;
    along = first - list.begin();
    which = &*first;
  }
  if (along < 0 || along >= table.dim()) return false;
  if (!which->isTensor()) return false;
  const at::Tensor& numbers = which->toTensor();
  if (!numbers.defined() || !numbers.device().is_cpu() || numbers.layout() != c10::kStrided) return false;
  if (numbers.dim() != 1 && !numbers.is_contiguous()) return false;
  const bool marks = numbers.scalar_type() == at::kBool;
  if (!marks && numbers.numel() > static_cast<std::int64_t>(kMostParts)) return false;
  std::vector<std::int64_t> rows;
  const std::int64_t size = table.size(along);
  const bool reported = marks                                ? add_marked(numbers, size, &rows)
                        : numbers.scalar_type() == at::kLong ? add_rows<std::int64_t>(numbers, size, &rows)
                        : numbers.scalar_type() == at::kInt  ? add_rows<std::int32_t>(numbers, size, &rows)
                                                             : false;
  if (!reported) return false;
  std::int64_t last = 0;  // element of a row
  for (std::int64_t d = 0; d < table.dim(); ++d) last += d == along ? 0 : (table.size(d) - 1) * table.stride(d);
  const auto item = static_cast<std::int64_t>(table.element_size());
  for (const std::int64_t row : rows) {
    const std::int64_t first = table.storage_offset() + row * table.stride(along);
    ranges->push_back(
        {static_cast<std::uint64_t>(first * item), static_cast<std::uint64_t>((first + last + 1) * item)});
  }
  return true;
}

void tidy(std::vector<ByteRange>& parts) {
  std::sort(parts.begin(), parts.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::size_t kept = 0;
  for (const ByteRange& part : parts) {
    if (part.end <= part.begin) continue;
    if (kept != 0 && part.begin <= parts[kept - 1].end + kGap)
      parts[kept - 1].end = std::max(parts[kept - 1].end, part.end);
    else
      parts[kept++] = part;
  }
  parts.resize(kept);
}

bool ReadParts::add(ByteRange part) {
  if (part.end > size_bytes_ || part.end - part.begin > size_bytes_ / 2) return false;
  parts_.push_back(part);
  if (parts_.size() - tidied_ < kMostParts) return true;
  tidy(parts_);
  tidied_ = parts_.size();
  return tidied_ < kMostParts;
}

std::vector<ByteRange> ReadParts::take(std::uint64_t begin) {
  tidy(parts_);
  for (ByteRange& part : parts_) {
    part.begin -= std::min(begin, part.begin);
    part.end -= std::min(begin, part.end);
  }
  return std::move(parts_);
}

}  // namespace finitude::observe
