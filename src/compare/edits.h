// Longest common subsequences: of two lists of numbers, and of pairs in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace finitude::compare {

using Places = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// Places (i, j), rising in both, of the longest common subsequence, by Myers' O(ND) algorithm. False where
// more than `most` insertions and deletions lead from one to the other; memory grows with the square of the
// edits that were made, at most 4 * most^2 bytes.
bool common(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b, std::size_t most, Places* same);

// Of pairs whose first numbers rise, the longest selection whose second numbers rise too.
Places longest_rising(const Places& pairs);

}  // namespace finitude::compare
