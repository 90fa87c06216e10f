#include "cli/nearest.h"

#include <algorithm>

namespace finitude::cli {
namespace {

constexpr std::size_t kLongest = 64;

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
  if (word.size() > kLongest) return {};
  std::string best;
  int least = std::max(1, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& each : words) {
    const int distance = edit_distance(word, each);
    if (distance < least) least = distance, best = each;
  }
  return best;
}

}  // namespace finitude::cli
