// What is noticed of a training while its values are still finite, as StepWatch and WeightWatch report it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace finitude::signal {

enum class What : std::uint8_t {
  kGrowth,
  kSpike,
  kOutlier,
  kVanishing,
  kScale,
  kDead,
  kClipping,
  kNorm,
  kNoLearning,
  kHeadroom,
  kVanishingDepth,
  kExplodingDepth,
  kLogits,
  kAttention,
  kDropped
};
inline constexpr What kAllWhats[] = {What::kGrowth,     What::kSpike,     What::kOutlier,        What::kVanishing,
                                     What::kScale,      What::kDead,      What::kClipping,       What::kNorm,
                                     What::kNoLearning, What::kHeadroom,  What::kVanishingDepth, What::kExplodingDepth,
                                     What::kLogits,     What::kAttention, What::kDropped};
// "growth", "spike", "outlier", "vanishing", "scale", "dead", "clipping", "norm", "no-learning", "headroom",
// "vanishing-depth", "exploding-depth", "logits", "attention", "dropped".
std::string_view word(What what) noexcept;

// Of growth: of what.
enum class Quantity : std::uint8_t { kGradient, kLoss, kWeight };
std::string_view word(Quantity quantity) noexcept;  // "gradient", "loss", "weight"

inline constexpr std::uint32_t kNoParameter = std::numeric_limits<std::uint32_t>::max();

struct Warning {
  What what = What::kGrowth;
  Quantity of = Quantity::kGradient;
  std::uint32_t parameter = kNoParameter;       // index of the one concerned, or of the one that grew most
  std::uint32_t last_parameter = kNoParameter;  // of a depth: the last matrix, `parameter` is the first
  std::uint32_t layers = 0;                     // of a depth: matrices; of dropped steps: how many a GradScaler skipped
  bool is_widespread = false;                   // most of the others grew about as much
  bool is_by_weights = false;                   // the weights of `parameter` grow, and few others do
  std::uint64_t step = 0, since = 0;
  // Of the quantity, or of the loss scale; of clipping, norm and headroom: the limit, and the norm or magnitude; of a
  // depth: of the gradients of the first and of the last matrix; of dropped steps: of so many steps, how many.
  double from = 0, to = 0;
  double factor = 1;  // per step, of a depth per layer; 1 where that says nothing
  double lr = 0;
  // Steps until the dtype's largest value is reached if it continues: at the earliest its square root, since squares of
  // it overflow there; of headroom the largest value itself. None: not in 100,000 steps, or the growth is too unsteady
  // for an interval of less than a factor of ten.
  std::optional<std::array<std::uint64_t, 2>> horizon;
};

// One sentence without the step, in which `name` is "loss", "gradients" or the name of a parameter; last_name: of the
// last one of a depth.
std::string in_words(const Warning& warning, const std::string& name, const std::string& last_name = {});
// A JSON array with the fields of each, "parameter" and "horizon" null where there is none; and back. from_json throws
// nlohmann::json::exception for anything else.
std::string as_json(const std::vector<Warning>& warnings);
std::vector<Warning> from_json(const std::string& text);

}  // namespace finitude::signal
