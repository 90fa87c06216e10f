#include "replay/guilty_rows.h"

namespace finitude::replay {

void bisect(const std::function<bool(const std::vector<std::int64_t>&)>& fails, std::vector<std::int64_t> all,
            std::size_t most, const std::function<bool()>& has_time, GuiltyRows* out) {
  // Sets that fail with all others replaced.
  std::vector<std::vector<std::int64_t>> todo{std::move(all)};
  while (!todo.empty()) {
    const std::vector<std::int64_t> set = std::move(todo.back());
    todo.pop_back();
    if (set.size() == 1) {
      if (out->guilty.size() == most) {
        out->more = true;
        return;
      }
      out->guilty.push_back(set[0]);
      continue;
    }
    if (!has_time()) {
      out->more = true;
      return;
    }
    const auto middle = set.begin() + static_cast<std::ptrdiff_t>(set.size() / 2);
    const std::vector<std::int64_t> first(set.begin(), middle), second(middle, set.end());
    const bool a = fails(first), b = fails(second);
    if (b) todo.push_back(second);
    if (a) todo.push_back(first);
    if (a || b) continue;
    out->guilty.insert(out->guilty.end(), set.begin(), set.end());
    out->together = true;
  }
}

}  // namespace finitude::replay
