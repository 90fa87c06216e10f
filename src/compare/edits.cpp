#include "compare/edits.h"

#include <algorithm>

namespace finitude::compare {

bool common(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b, std::size_t most, Places* same) {
  const auto m = static_cast<std::int64_t>(a.size()), n = static_cast<std::int64_t>(b.size());
  const auto limit = std::min<std::int64_t>(static_cast<std::int64_t>(most), m + n);
  same->clear();
  // furthest[k + limit + 1]: how far along `a` a path of d edits comes on the diagonal i - j = k.
  std::vector<std::int32_t> furthest(static_cast<std::size_t>(2 * limit + 3), 0);
  const auto at = [&](std::int64_t k) -> std::int32_t& { return furthest[static_cast<std::size_t>(k + limit + 1)]; };
  std::vector<std::vector<std::int32_t>> history;  // the diagonals -d .. d, before round d
  std::int64_t d = 0;
  for (bool done = false; !done; ++d) {
    if (d > limit) return false;
    history.emplace_back(furthest.begin() + (limit + 1 - d), furthest.begin() + (limit + 2 + d));
    for (std::int64_t k = -d; k <= d; k += 2) {
      const bool down = k == -d || (k != d && at(k - 1) < at(k + 1));
      std::int64_t i = d == 0 ? 0 : down ? at(k + 1) : at(k - 1) + 1;
      while (i < m && i - k < n && i - k >= 0 && a[static_cast<std::size_t>(i)] == b[static_cast<std::size_t>(i - k)])
        ++i;
      at(k) = static_cast<std::int32_t>(i);
      if (i >= m && i - k >= n) {
        done = true;
        break;
      }
    }
  }
  std::int64_t i = m, j = n;
  for (std::int64_t round = d - 1; round >= 0; --round) {
    // Values of round - 1, on its diagonals -(round) .. round; outside of what was reached they are 0.
    const auto before = [&](std::int64_t k) {
      return history[static_cast<std::size_t>(round)][static_cast<std::size_t>(k + round)];
    };
    const std::int64_t k = i - j;
    std::int64_t from_i = 0, from_j = 0;
    if (round != 0) {
      const bool down = k == -round || (k != round && before(k - 1) < before(k + 1));
      const std::int64_t from_k = down ? k + 1 : k - 1;
      from_i = before(from_k);
      from_j = from_i - from_k;
      const std::int64_t start = down ? from_i : from_i + 1;
      while (i > start) same->emplace_back(static_cast<std::uint32_t>(--i), static_cast<std::uint32_t>(--j));
    } else {
      while (i > 0) same->emplace_back(static_cast<std::uint32_t>(--i), static_cast<std::uint32_t>(--j));
    }
    i = from_i;
    j = from_j;
  }
  std::reverse(same->begin(), same->end());
  return true;
}

Places longest_rising(const Places& pairs) {
  std::vector<std::size_t> ends, before(pairs.size());  // ends[l]: the pair with the least end of a selection of l + 1
  constexpr std::size_t kStart = static_cast<std::size_t>(-1);
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    const auto place = std::lower_bound(ends.begin(), ends.end(), pairs[p].second,
                                        [&](std::size_t e, std::uint32_t y) { return pairs[e].second < y; });
    before[p] = place == ends.begin() ? kStart : *(place - 1);
    if (place == ends.end()) {
      ends.push_back(p);
    } else {
      *place = p;
    }
  }
  Places rising;
  for (std::size_t p = ends.empty() ? kStart : ends.back(); p != kStart; p = before[p]) rising.push_back(pairs[p]);
  std::reverse(rising.begin(), rising.end());
  return rising;
}

}  // namespace finitude::compare
