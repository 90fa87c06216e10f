#include "show/about_lines.h"

#include <algorithm>

#include "show/words.h"

namespace finitude::show {
namespace {

constexpr std::size_t kMostLines = 40;

}  // namespace

void about_lines(const Json& about, int hang, Layout* page) {
  for (std::size_t i = 0; i < std::min(about.size(), kMostLines); ++i) {
    const std::string a = text(about[i], "a"), b = text(about[i], "b"), group = text(about[i], "group");
    const std::string of = group == "seeds" ? "seed of " : group == "packages" ? "package " : "";
    page->line(
        i == 0 ? "recorded" : "", Tone::kStrong,
        {{of + text(about[i], "key") + ": " + (a.empty() ? "none" : a) + " against " + (b.empty() ? "none" : b)}},
        hang);
  }
  if (about.size() > kMostLines)
    page->line("", Tone::kStrong, {{"and " + grouped(about.size() - kMostLines) + " more (--json has them)"}}, hang);
}

}  // namespace finitude::show
