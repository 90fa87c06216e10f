#include "signal/depth_watch.h"

#include <algorithm>
#include <cmath>

namespace finitude::signal {
namespace {

constexpr std::uint32_t kLeastLayers = 6;
constexpr double kLeastDecades = 4;       // over all layers
constexpr double kLeastDepthFit = 0.9;    // of the variance
constexpr double kMostDepthAtOnce = 0.5;  // of the decades: more between two layers is no matter of the depth
constexpr double kLeastMonotone = 0.75;   // of the layers
constexpr std::uint64_t kEvery = 4;       // steps: each look takes a logarithm for each matrix
constexpr std::uint64_t kAfter = 64;      // steps: how a model is initialised shows in the first ones
constexpr std::uint32_t kLooks = 6;       // in a row: 21 steps
constexpr double kAgainDecades = 1;

}  // namespace

std::optional<DepthProfile> depth_profile(std::span<const float> gradients, std::span<const std::uint8_t> is_matrix) {
  DepthProfile profile;
  double n = 0, sum_y = 0, sum_yy = 0, sum_xy = 0, before = 0, up = 0, down = 0, rising = 0, falling = 0;
  const std::size_t size = std::min(gradients.size(), is_matrix.size());
  for (std::uint32_t i = 0; i < size; ++i) {
    if (is_matrix[i] == 0 || !(gradients[i] > 0)) continue;
    const double y = std::log10(static_cast<double>(gradients[i]));
    if (n == 0) {
      profile.first = i;
    } else {
      up = std::max(up, y - before);
      down = std::max(down, before - y);
      rising += y > before;
      falling += y < before;
    }
    profile.last = i;
    before = y;
    sum_y += y;
    sum_yy += y * y;
    sum_xy += n * y;
    ++n;
  }
  if (n < kLeastLayers) return std::nullopt;
  profile.layers = static_cast<std::uint32_t>(n);
  const double var_x = (n * n - 1) / 12, mean_x = (n - 1) / 2, var_y = sum_yy / n - sum_y / n * (sum_y / n);
  const double slope = (sum_xy / n - mean_x * sum_y / n) / var_x;
  if (!(var_y > 0) || slope * slope * var_x < kLeastDepthFit * var_y) return std::nullopt;
  profile.decades = slope * (n - 1);
  const double at_once = slope > 0 ? up : down, ordered = slope > 0 ? rising : falling;
  if (at_once > kMostDepthAtOnce * std::fabs(profile.decades) || ordered < kLeastMonotone * (n - 1))
    return std::nullopt;
  return profile;
}

std::vector<Warning> DepthWatch::note(std::uint64_t step, double lr, std::span<const float> gradients,
                                      std::span<const std::uint8_t> is_matrix) {
  if (++steps_ <= kAfter || steps_ % kEvery != 0) return {};
  const auto profile = depth_profile(gradients, is_matrix);
  for (const bool falls : {false, true}) {
    const double decades = profile ? (falls ? -profile->decades : profile->decades) : 0;
    if (decades < kLeastDecades) {
      looks_[falls] = 0;
      continue;
    }
    if (looks_[falls]++ == 0) since_[falls] = step;
    if (looks_[falls] < kLooks || (said_[falls] != 0 && decades < said_[falls] + kAgainDecades)) continue;
    said_[falls] = decades;
    Warning w;
    w.what = falls ? What::kExplodingDepth : What::kVanishingDepth;
    w.parameter = profile->first;
    w.last_parameter = profile->last;
    w.layers = profile->layers;
    w.step = step;
    w.since = since_[falls];
    w.from = static_cast<double>(gradients[profile->first]);
    w.to = static_cast<double>(gradients[profile->last]);
    w.factor = std::pow(10, decades / (profile->layers - 1));
    w.lr = lr;
    return {w};
  }
  return {};
}

}  // namespace finitude::signal
