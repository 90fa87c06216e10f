#include "replay/guilty_rows.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

using capture::StorageId;
using capture::Tape;
using capture::TensorRef;

constexpr std::size_t kMostGuilty = 32;
constexpr int kMostFillers = 4;

struct BatchInput {
  StorageId storage = 0;
  std::size_t begin = 0, row_bytes = 0;
};

// Rows one after the other, each element once.
bool is_row_major(const TensorRef& t) {
  std::int64_t expected = 1;
  for (std::size_t d = t.sizes.size(); d-- > 0; expected *= std::max<std::int64_t>(t.sizes[d], 1)) {
    if (t.sizes[d] > 1 && t.strides[d] != expected) return false;
  }
  return true;
}

std::map<std::int64_t, std::vector<BatchInput>> inputs_by_rows(const Tape& tape) {
  std::map<std::int64_t, std::vector<BatchInput>> found;
  std::set<StorageId> known;
  const auto look = [&](const TensorRef& t) {
    if (t.storage >= tape.storages.size() || t.sizes.empty() || t.sizes[0] < 2) return;
    const capture::Storage& storage = tape.storages[t.storage];
    const std::size_t item = capture::item_bytes(t.dtype);
    if (storage.origin != capture::Storage::kInput || !storage.kind.empty() || item == 0 || !is_row_major(t)) return;
    std::size_t row = item;
    for (std::size_t d = 1; d < t.sizes.size(); ++d) row *= static_cast<std::size_t>(t.sizes[d]);
    const std::size_t begin = static_cast<std::size_t>(t.offset) * item;
    if (row == 0 || begin + row * static_cast<std::size_t>(t.sizes[0]) > storage.bytes.size()) return;
    if (known.insert(t.storage).second) found[t.sizes[0]].push_back({t.storage, begin, row});
  };
  for (const capture::Entry& entry : tape.entries) {
    if (entry.kind == capture::Entry::kCall) capture::for_each_tensor(entry.args, look);
  }
  return found;
}

bool failed(const Played& played) {
  return std::any_of(played.outcomes.begin(), played.outcomes.end(), [](const PlayedOutcome& o) {
    return (o.kind == "loss" || o.kind == "gradient") && !o.got_flaws.finite();
  });
}

}  // namespace

GuiltyRows find_guilty_rows(const Tape& tape, const std::vector<std::int64_t>& spare, double seconds) {
  GuiltyRows out;
  const auto began = std::chrono::steady_clock::now();
  const auto has_time = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < seconds;
  };
  const auto found = inputs_by_rows(tape);
  const auto weight = [](const auto& entry) {
    double bytes = 0;
    for (const BatchInput& input : entry.second) bytes += static_cast<double>(input.row_bytes) * static_cast<double>(entry.first);
    return std::pair(entry.second.size(), bytes);
  };
  const auto best = std::max_element(found.begin(), found.end(), [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  if (best == found.end()) {
    out.why_not = "no batch is seen among the inputs";
    return out;
  }
  out.rows = best->first;
  std::string why;
  const auto fails = [&](const std::vector<std::int64_t>& kept, std::int64_t filler) {
    std::vector<bool> keep(static_cast<std::size_t>(out.rows), false);
    for (const std::int64_t row : kept) keep[static_cast<std::size_t>(row)] = true;
    std::map<StorageId, std::string> contents;
    for (const BatchInput& input : best->second) {
      std::string bytes = tape.storages[input.storage].bytes;
      const std::string sample = bytes.substr(input.begin + static_cast<std::size_t>(filler) * input.row_bytes, input.row_bytes);
      for (std::size_t row = 0; row < keep.size(); ++row) {
        if (!keep[row]) bytes.replace(input.begin + row * input.row_bytes, input.row_bytes, sample);
      }
      contents[input.storage] = std::move(bytes);
    }
    PlayOptions options;
    options.contents = &contents;
    const Played played = play(tape, options);
    ++out.replays;
    if (why.empty()) why = played.why_not;  // other samples may need other shapes
    return !played.why_not.empty() || failed(played);
  };
  std::optional<std::int64_t> filler;
  int tries = 0;
  for (std::int64_t row = 0; row < out.rows && tries < kMostFillers && !filler && has_time(); ++row) {
    if (std::find(spare.begin(), spare.end(), row) != spare.end()) continue;
    ++tries;
    if (!fails({}, row)) filler = row;
  }
  if (!filler) {
    out.why_not = why.empty() ? "it fails with any sample" : why;
    return out;
  }
  out.filler = *filler;
  std::vector<std::int64_t> all(static_cast<std::size_t>(out.rows));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  bisect([&](const std::vector<std::int64_t>& kept) { return fails(kept, *filler); }, std::move(all), kMostGuilty, has_time, &out);
  std::sort(out.guilty.begin(), out.guilty.end());
  out.why_not = why;
  if (!why.empty()) return out;
  // Together they explain it only if the step is finite without them.
  if (!out.more) {
    std::vector<std::int64_t> rest;
    for (std::int64_t row = 0; row < out.rows; ++row) {
      if (!std::binary_search(out.guilty.begin(), out.guilty.end(), row)) rest.push_back(row);
    }
    out.more = fails(rest, *filler);
  }
  out.ran = why.empty();
  return out;
}

}  // namespace finitude::replay
