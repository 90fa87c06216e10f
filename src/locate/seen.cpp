#include "locate/seen.h"

#include <algorithm>
#include <iterator>

namespace finitude::locate {

void SeenFinite::note(const record::TensorUse& use) {
  if (use.health.numel == 0) return;
  Spans& spans = spans_[use.storage];
  if (!use.health.ok()) {
    auto it = spans.upper_bound(use.begin);
    if (it != spans.begin() && std::prev(it)->second > use.begin) --it;
    while (it != spans.end() && it->first < use.end) {
      const auto [begin, end] = *it;
      it = spans.erase(it);
      if (begin < use.begin) spans.emplace(begin, use.begin);
      if (end > use.end) it = spans.emplace(use.end, end).first;
    }
    return;
  }
  if (!use.dense) return;  // says nothing of the bytes between its elements
  std::int64_t begin = use.begin, end = use.end;
  auto it = spans.upper_bound(begin);
  if (it != spans.begin() && std::prev(it)->second >= begin) --it;
  while (it != spans.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = spans.erase(it);
  }
  spans.emplace(begin, end);
}

bool SeenFinite::covers(const record::TensorUse& use) const {
  const Spans& spans = spans_[use.storage];
  const auto it = spans.upper_bound(use.begin);
  return it != spans.begin() && std::prev(it)->second >= use.end;
}

}  // namespace finitude::locate
