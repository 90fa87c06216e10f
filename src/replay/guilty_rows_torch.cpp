#include "replay/guilty_rows.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "replay/batch_inputs.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"

namespace finitude::replay {
namespace {

using capture::Tape;

constexpr std::size_t kMostGuilty = 32;
constexpr int kMostFillers = 4;
constexpr std::size_t kMostSizes = 3;  // numbers of rows that are taken for that of the batch, one after the other

// The tensors of an argument, as the tape lists them: none for what is not given.
std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> out;
  const auto add = [&](const at::Tensor& t) {
    if (t.defined()) out.push_back(t);
  };
  if (value.isTensor()) add(value.toTensor());
  if (value.isTensorList()) std::ranges::for_each(value.toTensorVector(), add);
  if (value.isOptionalTensorList()) {
    for (const auto& t : value.toOptionalTensorVector()) add(t.value_or(at::Tensor()));
  }
  return out;
}

// Overwrites rows of the batch before it is first read.
class RowChange : public PlayObserver {
 public:
  RowChange(const std::vector<BatchInput>& inputs, const std::vector<bool>& keep, std::int64_t filler)
      : keep_(keep), filler_(static_cast<std::size_t>(filler)) {
    for (const BatchInput& input : inputs) by_entry_.emplace(input.read_at, &input);
  }

  void change(std::size_t index, const c10::FunctionSchema&, std::vector<c10::IValue>& arguments) override {
    for (auto [it, last] = by_entry_.equal_range(index); it != last; ++it) {
      const BatchInput& input = *it->second;
      TORCH_CHECK(input.arg < arguments.size(), "an argument that the call does not have");
      const std::vector<at::Tensor> tensors = tensors_in(arguments[input.arg]);
      TORCH_CHECK(input.item < tensors.size() && tensors[input.item].has_storage(), "a batch that is no plain tensor");
      const c10::Storage& storage = tensors[input.item].storage();
      TORCH_CHECK(input.begin + keep_.size() * input.row_bytes <= storage.nbytes(), "a batch of another size");
      char* rows = static_cast<char*>(storage.mutable_data()) + input.begin;
      for (std::size_t row = 0; row < keep_.size(); ++row) {
        if (!keep_[row] && row != filler_) std::memcpy(rows + row * input.row_bytes, rows + filler_ * input.row_bytes, input.row_bytes);
      }
    }
  }

 private:
  const std::vector<bool>& keep_;
  const std::size_t filler_;
  std::multimap<std::size_t, const BatchInput*> by_entry_;
};

// Loss and gradients; where they were finite as recorded, what else was not.
bool failed(const Played& played) {
  const auto counts = [](const PlayedOutcome& o) { return o.kind == "loss" || o.kind == "gradient"; };
  const bool usual = std::any_of(played.outcomes.begin(), played.outcomes.end(),
                                 [&](const PlayedOutcome& o) { return counts(o) && !o.expected_flaws.finite(); });
  return std::any_of(played.outcomes.begin(), played.outcomes.end(), [&](const PlayedOutcome& o) {
    return !o.got_flaws.finite() && (counts(o) || (!usual && !o.expected_flaws.finite()));
  });
}

using Inputs = std::vector<BatchInput>;

// How much speaks for its being the batch: a few tensors with the same number of rows, large ones first.
std::pair<std::size_t, double> weight(std::int64_t rows, const Inputs& inputs) {
  double bytes = 0;
  for (const BatchInput& input : inputs) bytes += static_cast<double>(input.row_bytes) * static_cast<double>(rows);
  return {inputs.size(), bytes};
}

GuiltyRows search(const Tape& tape, std::int64_t rows, const Inputs& inputs, const std::vector<std::int64_t>& spare,
                  const std::function<bool()>& has_time) {
  GuiltyRows out;
  out.rows = rows;
  std::string why;
  const auto fails = [&](const std::vector<std::int64_t>& kept, std::int64_t filler) {
    std::vector<bool> keep(static_cast<std::size_t>(rows), false);
    for (const std::int64_t row : kept) keep[static_cast<std::size_t>(row)] = true;
    RowChange change(inputs, keep, filler);
    const Played played = play(tape, PlayOptions(), &change);
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

}  // namespace

GuiltyRows find_guilty_rows(const Tape& tape, const std::vector<std::int64_t>& spare, double seconds) {
  const auto began = std::chrono::steady_clock::now();
  const auto has_time = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < seconds;
  };
  std::vector<std::pair<std::int64_t, Inputs>> sizes;
  for (auto& [rows, inputs] : batch_inputs(tape)) sizes.emplace_back(rows, std::move(inputs));
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return weight(a.first, a.second) > weight(b.first, b.second); });
  GuiltyRows best;
  best.why_not = "no batch is seen among the inputs";
  for (std::size_t i = 0; i < sizes.size() && i < kMostSizes && has_time(); ++i) {
    GuiltyRows found = search(tape, sizes[i].first, sizes[i].second, spare, has_time);
    found.replays += i == 0 ? 0 : best.replays;
    const bool told = found.ran && !found.guilty.empty();
    if (i == 0 || told) best = std::move(found);
    else best.replays = found.replays;
    if (told && !best.together) break;
  }
  return best;
}

}  // namespace finitude::replay
