#include "cli/replay/replay_moved_torch.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace finitude::cli {
namespace {

at::Tensor in_order(const at::Tensor& t) {
  return (t.layout() == c10::kStrided ? t : t.to_dense()).contiguous().resolve_conj().resolve_neg();
}

compare::Distance distance_of(const at::Tensor& before, const at::Tensor& after) {
  if (!before.defined() || !after.defined() || before.sizes() != after.sizes()) return {};
  const at::Tensor a = in_order(before), b = in_order(after);
  const compare::Element of_a = compare::element_of_scalar_type(static_cast<std::uint8_t>(a.scalar_type())),
                         of_b = compare::element_of_scalar_type(static_cast<std::uint8_t>(b.scalar_type()));
  const auto reals = static_cast<std::uint64_t>(a.numel()) * static_cast<std::uint64_t>(of_a.reals);
  return compare::distance(static_cast<const char*>(a.const_data_ptr()), of_a.number,
                           static_cast<const char*>(b.const_data_ptr()), of_b.number, reals);
}

void take_farther(MovedResult found, std::optional<MovedResult>* kept) {
  const auto order = [](const MovedResult& one) { return std::pair(one.distance.broken(), one.relative); };
  if (!*kept || order(found) > order(**kept)) *kept = std::move(found);
}

}  // namespace

double Moved::relative() const {
  double most = 0;
  for (const auto* one : {&loss, &gradient, &other}) {
    if (*one) most = std::max(most, (*one)->relative);
  }
  return most;
}

bool Moved::moved_more_than(const Moved& than) const {
  const std::size_t whole = now_finite.size() + now_not.size(), of_other = than.now_finite.size() + than.now_not.size();
  if (whole != of_other) return whole > of_other;
  if (broken != than.broken) return broken > than.broken;
  return relative() > than.relative();
}

Moved moved_results(const capture::Tape& tape, const std::vector<replay::NamedTensor>& before,
                    const std::vector<replay::NamedTensor>& after) {
  Moved moved;
  moved.results = std::min({tape.outcomes.size(), before.size(), after.size()});
  std::vector<compare::Distance> distances;
  double of_gradients = 0;  // the largest value in all of them
  for (std::size_t i = 0; i < moved.results; ++i) {
    distances.push_back(distance_of(before[i].tensor, after[i].tensor));
    if (tape.outcomes[i].kind == "gradient") of_gradients = std::max(of_gradients, distances.back().scale);
  }
  for (std::size_t i = 0; i < moved.results; ++i) {
    const capture::Outcome& outcome = tape.outcomes[i];
    const compare::Distance& d = distances[i];
    const bool is_gradient = outcome.kind == "gradient";
    MovedResult found{outcome.kind + (outcome.name == outcome.kind ? "" : " " + outcome.name), d, d.relative()};
    if (is_gradient) found.relative = of_gradients > 0 ? d.max_abs / of_gradients : 0;
    const bool then = replay::health_of(before[i].tensor).ok(), now = replay::health_of(after[i].tensor).ok();
    if (outcome.kind == "loss") moved.loss_is_finite = then;
    if (then != now) (now ? moved.now_finite : moved.now_not).push_back(found.name);
    if (!d.known || d.same_bits || d.differing == d.nan_in_both) continue;  // NaN is as far from itself as it ever is
    ++moved.differing;
    moved.broken += d.nan_in_one + d.infinite;
    take_farther(std::move(found), outcome.kind == "loss" ? &moved.loss : is_gradient ? &moved.gradient : &moved.other);
  }
  return moved;
}

std::string moved_text(const MovedResult& result) {
  const compare::Distance& d = result.distance;
  char text[160];
  std::snprintf(text, sizeof text, "%llu ulps, %.2g relative", static_cast<unsigned long long>(d.max_ulps),
                result.relative);
  if (!d.broken()) return text;
  const std::uint64_t broken = d.nan_in_one + d.infinite;
  if (broken + d.nan_in_both >= d.elements) return "finite in one only";
  return std::to_string(broken) + (broken == 1 ? " value" : " values") + " finite in one only; else " + text;
}

}  // namespace finitude::cli
