// What the operators inside of an open one have written: whether that one does its work by them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace finitude::observe {

// Bytes [begin, end) of a storage.
struct Span {
  const void* memory = nullptr;
  std::int64_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// A stack as deep as the operators that are open on one thread.
class NestedWrites {
 public:
  void clear() { open_.clear(); }
  std::size_t depth() const { return open_.size(); }
  void begin() { open_.emplace_back(); }
  // To the operator around the innermost one that is open, if there is one.
  void wrote(const Span& span) {
    if (open_.size() > 1) open_[open_.size() - 2].push_back(span);
  }
  // Did operators inside of the innermost one write the very same bytes?
  bool has(const Span& span) const {
    return !open_.empty() && std::find(open_.back().begin(), open_.back().end(), span) != open_.back().end();
  }
  // Ends operators until so many are open.
  void end(std::size_t depth) {
    if (depth < open_.size()) open_.resize(depth);
  }

 private:
  std::vector<std::vector<Span>> open_;
};

}  // namespace finitude::observe
