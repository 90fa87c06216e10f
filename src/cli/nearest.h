// The word that was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace finitude::cli {

// Insertions, deletions, substitutions and swaps of neighbours that lead from `a` to `b`.
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `words`, or empty where none is near: more than a third of the letters would change.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

}  // namespace finitude::cli
