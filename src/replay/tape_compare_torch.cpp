#include "replay/tape_compare_torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cstdio>

namespace finitude::replay {
namespace {

at::Tensor in_double(const at::Tensor& t) {
  const at::Tensor dense = t.layout() == c10::kStrided ? t : t.to_dense();
  return dense.to(dense.is_complex() ? at::kComplexDouble : at::kDouble);
}

// Largest difference of elements that are finite in both, and largest magnitude of these; that is below 0 where there
// are none.
std::pair<double, double> difference(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes() || a.numel() == 0) return {0, -1};
  const at::Tensor x = in_double(a), y = in_double(b);
  const at::Tensor both = at::isfinite(x).logical_and(at::isfinite(y));
  if (!both.any().item<bool>()) return {0, -1};
  const at::Tensor apart = at::where(both, x.sub(y).abs(), 0.0), size = at::where(both, x.abs(), 0.0);
  return {apart.max().item<double>(), size.max().item<double>()};
}

void list(const std::vector<std::string>& names, const std::string& what, std::string* text) {
  constexpr std::size_t kShown = 6;
  if (names.empty()) return;
  *text += what;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) *text += (i == 0 ? " " : ", ") + names[i];
  if (names.size() > kShown) *text += " and " + std::to_string(names.size() - kShown) + " more";
  *text += "\n";
}

}  // namespace

Reported compare_dtypes(const std::string& dtype, const std::vector<NamedTensor>& usual,
                        const std::vector<NamedTensor>& changed, const Played& played) {
  Reported reported;
  for (const auto& [name, why] : played.as_recorded)
    reported.text += "computed as recorded: " + name + " (" + why + ")\n";
  std::vector<std::string> both, only_then, only_now;
  double worst = 0, worst_relative = 0;
  std::string where;
  for (std::size_t i = 0; i < std::min(usual.size(), changed.size()); ++i) {
    const bool then = !health_of(usual[i].tensor).ok(), now = !health_of(changed[i].tensor).ok();
    if (then || now) (then && now ? both : then ? only_then : only_now).push_back(usual[i].name);
    const auto [apart, size] = difference(usual[i].tensor, changed[i].tensor);
    if (size < 0) continue;
    const double relative = size > 0 ? apart / size : 0;
    if (where.empty() || relative > worst_relative) {
      worst_relative = relative;
      worst = apart;
      where = usual[i].name;
    }
  }
  list(both, "non-finite in " + dtype + " too:", &reported.text);
  list(only_then, "finite in " + dtype + ":", &reported.text);
  list(only_now, "non-finite only in " + dtype + ":", &reported.text);
  if (changed.empty()) {
    reported.text += "computed in " + dtype + ", but there is nothing on the tape to compare with\n";
    reported.code = 4;
    return reported;
  }
  const bool same = only_then.empty() && only_now.empty();
  char line[200];
  std::snprintf(line, sizeof line, ": %zu of %zu results are non-finite; ", both.size() + only_now.size(),
                changed.size());
  reported.text += dtype + (same ? ", the same results are non-finite" : ", other results are non-finite") + line;
  if (where.empty()) {  // NaN on both sides is equal to nothing, and no difference either
    reported.text += "no number is finite on both sides, so that none can be compared\n";
  } else {
    std::snprintf(line, sizeof line, "largest difference %.3g (%.3g of the largest value) in ", worst, worst_relative);
    reported.text += line + where + "\n";
  }
  reported.code = same ? 0 : 1;
  return reported;
}

}  // namespace finitude::replay
