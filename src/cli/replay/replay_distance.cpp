#include "cli/replay/replay_distance.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "compare/distance.h"

namespace finitude::cli {
namespace {

struct Apart {
  std::string name;
  compare::Distance distance;
  std::uint64_t numel = 0;
};

bool further(const Apart& a, const Apart& b) {
  if (a.distance.broken() != b.distance.broken()) return a.distance.broken();
  return a.distance.relative() > b.distance.relative();
}

std::uint64_t numel_of(const capture::TensorRef& tensor) {
  std::uint64_t numel = 1;
  for (const std::int64_t size : tensor.sizes) {
    if (__builtin_mul_overflow(numel, static_cast<std::uint64_t>(size), &numel)) return 0;
  }
  return numel;
}

std::string line(const Apart& apart) {
  const compare::Distance& d = apart.distance;
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "%llu ulps, %.3g relative", static_cast<unsigned long long>(d.max_ulps),
                d.relative());
  std::string text = "  " + apart.name + ": ";
  if (d.broken())
    text += std::to_string(d.nan_in_one + d.infinite) + " values are not finite in one of the two; the others ";
  text += numbers;
  if (d.elements < apart.numel)
    text += " (of " + std::to_string(d.elements) + " of " + std::to_string(apart.numel) + " values)";
  return text + "\n";
}

}  // namespace

std::string report_distances(const capture::Tape& tape, const replay::Played& played) {
  std::map<std::string, Apart> farthest;  // by kind
  std::vector<std::string> kinds;
  for (std::size_t i = 0; i < std::min(tape.outcomes.size(), played.outcomes.size()); ++i) {
    const capture::Outcome& then = tape.outcomes[i];
    const replay::PlayedOutcome& now = played.outcomes[i];
    if (now.same() || now.got_sample.empty() || now.got_sample.size() != then.sample.size() ||
        then.value.tensors.size() != 1)
      continue;
    const capture::TensorRef& tensor = then.value.tensors[0];
    const compare::Element element = compare::element_of_scalar_type(tensor.dtype);
    const std::size_t bytes = compare::info(element.number).size_bytes;
    if (bytes == 0) continue;
    Apart apart{then.kind + (then.name == then.kind ? "" : " " + then.name),
                compare::distance(then.sample.data(), element.number, now.got_sample.data(), element.number,
                                  then.sample.size() / bytes),
                numel_of(tensor) * static_cast<std::uint64_t>(element.reals)};
    if (!apart.distance.known) continue;
    const auto [found, is_new] = farthest.try_emplace(then.kind, apart);
    if (is_new) kinds.push_back(then.kind);
    if (!is_new && further(apart, found->second)) found->second = apart;
  }
  if (kinds.empty()) return "";
  std::string text = "largest differences from what was recorded:\n";
  for (const std::string& kind : kinds) text += line(farthest.at(kind));
  return text;
}

std::string report_ways(const replay::Played& played) {
  std::map<std::string, std::string> by_way;
  for (const auto& [name, way] : played.otherwise) {
    std::string& names = by_way[way];
    names += (names.empty() ? "" : ", ") + name;
  }
  std::string text;
  for (const auto& [way, names] : by_way) text += "computed " + way + ": " + names + "\n";
  return text;
}

}  // namespace finitude::cli
