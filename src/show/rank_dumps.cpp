#include "show/rank_dumps.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>

namespace finitude::show {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kMostEntries = 100'000, kMostDigits = 6;

// "rank-12", "rank12"
std::optional<std::uint32_t> rank_of(std::string_view name) {
  if (!name.starts_with("rank")) return std::nullopt;
  name.remove_prefix(4);
  if (name.starts_with('-')) name.remove_prefix(1);
  if (name.empty() || name.size() > kMostDigits) return std::nullopt;
  std::uint32_t rank = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return std::nullopt;
    rank = rank * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return rank;
}

}  // namespace

std::vector<std::string> dumps_of_ranks(const std::string& path) {
  std::error_code error;
  fs::path above = fs::path(path).lexically_normal(), below;
  if (!above.has_filename()) above = above.parent_path();
  if (above.is_relative()) above = fs::absolute(above, error);
  for (; above.has_relative_path() && !rank_of(above.filename().string()); above = above.parent_path())
    below = below.empty() ? above.filename() : above.filename() / below;
  if (!above.has_relative_path()) return {path};
  std::map<std::uint32_t, std::string> found;
  std::size_t entries = 0;
  for (fs::directory_iterator at(above.parent_path(), error), end; !error && at != end && ++entries < kMostEntries;
       at.increment(error)) {
    const auto rank = rank_of(at->path().filename().string());
    const fs::path file = below.empty() ? at->path() : at->path() / below;
    std::error_code unknown;
    if (rank && fs::exists(file, unknown)) found.emplace(*rank, file.string());
  }
  std::vector<std::string> files;
  for (const auto& [rank, file] : found) files.push_back(file);
  return files.empty() ? std::vector<std::string>{path} : files;
}

}  // namespace finitude::show
