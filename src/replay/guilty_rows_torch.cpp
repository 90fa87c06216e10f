#include "replay/guilty_rows.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "replay/batch_inputs.h"
#include "replay/carried_rows.h"
#include "replay/tape_observer_torch.h"
#include "replay/tape_player.h"
#include "replay/tape_statistics_torch.h"

namespace finitude::replay {
namespace {

using capture::Tape;

constexpr std::size_t kMostGuilty = 32;
constexpr std::size_t kMostFillers = 4;
constexpr std::size_t kMostReportedElements = 8;
constexpr std::size_t kMostElements = std::size_t{1} << 20;  // of one sample
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

// NaN, or also Inf, in what a call gave.
bool is_bad(const PlayedCall& call, const JudgedCall& judged) {
  std::size_t number = 0;
  for (const c10::IValue& result : call.results) {
    for (const at::Tensor& given : tensors_in(result)) {
      if (std::ranges::find(judged.notes, number++) != judged.notes.end()) continue;
      if (!at::isFloatingType(given.scalar_type()) && !at::isComplexType(given.scalar_type())) continue;
      const at::Tensor t = with_arithmetic(given);
      if ((judged.nan_only ? at::isnan(t) : at::isfinite(t).logical_not()).any().item<bool>()) return true;
    }
  }
  return false;
}

// Overwrites rows of the batch before it is first read; ends the replay after the judged call, where there is one.
class RowChange : public PlayObserver {
 public:
  RowChange(const std::vector<BatchInput>& inputs, const std::vector<bool>& keep, std::int64_t filler,
            const std::optional<JudgedCall>& birth)
      : keep_(keep), filler_(static_cast<std::size_t>(filler)), birth_(birth) {
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
      overwrite(static_cast<char*>(storage.mutable_data()) + input.begin, input);
    }
  }

  bool after(const PlayedCall& call) override {
    if (!birth_ || call.index != birth_->entry) return true;
    bad_ = is_bad(call, *birth_);
    return false;
  }

  // What the judged call came to; nothing where the replay did not get there.
  std::optional<bool> bad() const { return bad_; }

 protected:
  virtual void overwrite(char* rows, const BatchInput& input) const {
    for (std::size_t row = 0; row < keep_.size(); ++row) {
      if (!keep_[row] && row != filler_)
        std::memcpy(rows + row * input.row_bytes, rows + filler_ * input.row_bytes, input.row_bytes);
    }
  }

  const std::vector<bool>& keep_;
  const std::size_t filler_;

 private:
  const std::optional<JudgedCall>& birth_;
  std::optional<bool> bad_;
  std::multimap<std::size_t, const BatchInput*> by_entry_;
};

// Overwrites elements of one row. The elements of all inputs are counted through, in the order of the inputs.
class ElementChange : public RowChange {
 public:
  ElementChange(const std::vector<BatchInput>& inputs, const std::vector<bool>& all_rows, const std::vector<bool>& keep,
                std::int64_t row, std::int64_t filler, const std::optional<JudgedCall>& birth)
      : RowChange(inputs, all_rows, filler, birth), keep_elements_(keep), row_(static_cast<std::size_t>(row)) {
    std::size_t first = 0;
    for (const BatchInput& input : inputs) {
      first_.emplace(&input, first);
      first += input.row_bytes / input.item_bytes;
    }
  }

 protected:
  void overwrite(char* rows, const BatchInput& input) const override {
    const std::size_t first = first_.at(&input), count = input.row_bytes / input.item_bytes;
    char* const to = rows + row_ * input.row_bytes;
    const char* const from = rows + filler_ * input.row_bytes;
    for (std::size_t i = 0; i < count; ++i) {
      if (!keep_elements_[first + i])
        std::memcpy(to + i * input.item_bytes, from + i * input.item_bytes, input.item_bytes);
    }
  }

 private:
  const std::vector<bool>& keep_elements_;
  const std::size_t row_;
  std::map<const BatchInput*, std::size_t> first_;
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

// How much speaks for its being the batch: what a loader gave, tensors with the same number of rows, large ones first.
std::tuple<std::ptrdiff_t, std::size_t, double> weight(std::int64_t rows, const Inputs& inputs) {
  double bytes = 0;
  for (const BatchInput& input : inputs) bytes += static_cast<double>(input.row_bytes) * static_cast<double>(rows);
  return {std::ranges::count_if(inputs, &BatchInput::loaded), inputs.size(), bytes};
}

// Samples to fill with, likely healthy ones first: all rows of memory that the step overwrites later may look bad.
std::vector<std::int64_t> fillers(std::int64_t rows, const std::vector<std::int64_t>& spare) {
  std::vector<std::int64_t> out;
  for (const bool bad : {false, true}) {
    for (std::int64_t row = 0; row < rows && out.size() < kMostFillers; ++row) {
      if ((std::find(spare.begin(), spare.end(), row) != spare.end()) == bad) out.push_back(row);
    }
  }
  return out;
}

GuiltyRows search(const Tape& tape, std::int64_t rows, const Inputs& inputs, const std::vector<std::int64_t>& spare,
                  const std::optional<JudgedCall>& birth, const std::function<bool()>& has_time) {
  GuiltyRows out;
  out.rows = rows;
  out.up_to_birth = birth.has_value();
  std::string why;
  const auto fails = [&](const std::vector<std::int64_t>& kept, std::int64_t filler) {
    std::vector<bool> keep(static_cast<std::size_t>(rows), false);
    for (const std::int64_t row : kept) keep[static_cast<std::size_t>(row)] = true;
    RowChange change(inputs, keep, filler, birth);
    const Played played = play(tape, PlayOptions(), &change);
    ++out.replays;
    const bool reported = !birth || change.bad().has_value();
    if (why.empty())
      why = !played.why_not.empty() || reported
                ? played.why_not
                : "the record of the step does not hold that operation";  // other samples may need other shapes
    return !played.why_not.empty() || !reported || (birth ? *change.bad() : failed(played));
  };
  std::optional<std::int64_t> filler;
  for (const std::int64_t row : fillers(rows, spare)) {
    if (!has_time()) break;
    if (!fails({}, row)) {
      filler = row;
      why.clear();  // a sample that makes other shapes is no help, and none is needed of it
      break;
    }
  }
  if (!filler) {
    out.why_not = why.empty() ? "it fails with each of them" : why;
    return out;
  }
  out.filler = *filler;
  // A batch of copies of one sample is another batch to whatever looks at all of it (BatchNorm). Where it is enough to
  // replace the samples that were bad at the birth, the others stay as they are.
  std::vector<std::int64_t> all(static_cast<std::size_t>(out.rows)), others;
  std::iota(all.begin(), all.end(), std::int64_t{0});
  std::ranges::copy_if(all, std::back_inserter(others),
                       [&](std::int64_t row) { return std::ranges::find(spare, row) == spare.end(); });
  if (others.empty() || others.size() == all.size() || !has_time() || fails(others, *filler)) {
    others.clear();
    why.clear();
  } else {
    std::erase_if(all, [&](std::int64_t row) { return std::ranges::binary_search(others, row); });
  }
  const auto fails_beside_others = [&](std::vector<std::int64_t> kept) {
    kept.insert(kept.end(), others.begin(), others.end());
    return fails(kept, *filler);
  };
  bisect(fails_beside_others, all, kMostGuilty, has_time, &out);
  if (out.more &&
      !others.empty()) {  // without the rows of the birth the step is finite: it is those, if not each alone
    out.guilty = std::move(all);
    out.one_by_one = out.more = out.together = false;
  }
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

using Sizes = std::vector<std::pair<std::int64_t, Inputs>>;

GuiltyRows search_sizes(const Tape& tape, const Sizes& sizes, const std::vector<std::int64_t>& spare,
                        const std::optional<JudgedCall>& birth, const std::function<bool()>& has_time) {
  GuiltyRows best;
  best.why_not = "no batch is seen among the inputs";
  for (std::size_t i = 0; i < sizes.size() && i < kMostSizes && has_time(); ++i) {
    GuiltyRows found = search(tape, sizes[i].first, sizes[i].second, spare, birth, has_time);
    found.replays += i == 0 ? 0 : best.replays;
    const bool reported = found.ran && !found.guilty.empty();
    if (i == 0 || reported)
      best = std::move(found);
    else
      best.replays = found.replays;
    if (reported && !best.together) break;
  }
  return best;
}

// python/finitude/program/step_start_state.py calls what a loader handed over by the number of the batch in the step
// and the keys to it: "0.image". A report says "batch[image]".
std::string shown_name(const capture::Storage& storage) {
  if (storage.kind != "batch") return storage.name;
  std::string out = "batch";
  std::size_t at = storage.name.find('.');
  while (at != std::string::npos) {
    const std::size_t next = storage.name.find('.', at + 1);
    out += "[" + storage.name.substr(at + 1, next - at - 1) + "]";
    at = next;
  }
  return out;
}

GuiltyElement place_of(const Tape& tape, const Inputs& inputs, std::size_t element) {
  GuiltyElement out;
  for (const BatchInput& input : inputs) {
    out.number = static_cast<std::size_t>(&input - inputs.data());
    const std::size_t count = input.row_bytes / input.item_bytes;
    if (element >= count) {
      element -= count;
      continue;
    }
    out.input = shown_name(tape.storages[input.storage]);
    out.index.resize(input.row_sizes.size());
    auto rest = static_cast<std::int64_t>(element);
    for (std::size_t d = out.index.size(); d-- > 0; rest /= std::max<std::int64_t>(input.row_sizes[d], 1))
      out.index[d] = rest % std::max<std::int64_t>(input.row_sizes[d], 1);
    break;
  }
  return out;
}

// The same search within the one guilty sample: the token of a text, the column of a table.
void find_elements(const Tape& tape, const Inputs& inputs, const std::optional<JudgedCall>& birth,
                   const std::function<bool()>& has_time, GuiltyRows* rows) {
  std::size_t total = 0;
  for (const BatchInput& input : inputs) {
    if (input.item_bytes == 0) return;
    total += input.row_bytes / input.item_bytes;
  }
  if (total < 2 || total > kMostElements) return;
  const std::vector<bool> all_rows(static_cast<std::size_t>(rows->rows), true);
  const auto fails = [&](const std::vector<std::int64_t>& kept) {
    std::vector<bool> keep(total, false);
    for (const std::int64_t element : kept) keep[static_cast<std::size_t>(element)] = true;
    ElementChange change(inputs, all_rows, keep, rows->guilty.front(), rows->filler, birth);
    const Played played = play(tape, PlayOptions(), &change);
    ++rows->replays;
    return !played.why_not.empty() || (birth ? change.bad().value_or(true) : failed(played));
  };
  std::vector<std::int64_t> all(total), rest;
  std::iota(all.begin(), all.end(), std::int64_t{0});
  GuiltyRows found;
  bisect(fails, all, kMostReportedElements, has_time, &found);
  if (found.more || found.guilty.empty() || found.guilty.size() > kMostReportedElements || found.guilty.size() == total)
    return;
  std::sort(found.guilty.begin(), found.guilty.end());
  std::set_difference(all.begin(), all.end(), found.guilty.begin(), found.guilty.end(), std::back_inserter(rest));
  if (!has_time() || fails(rest)) return;
  for (const std::int64_t element : found.guilty)
    rows->elements.push_back(place_of(tape, inputs, static_cast<std::size_t>(element)));
  rows->elements_together = found.together;
}

// Is the step finite with the guilty rows replaced in these alone?
bool heals_in(const Tape& tape, const Inputs& samples, const std::optional<JudgedCall>& birth,
              const GuiltyRows& found) {
  if (samples.empty()) return false;
  std::vector<bool> keep(static_cast<std::size_t>(found.rows), true);
  for (const std::int64_t row : found.guilty) keep[static_cast<std::size_t>(row)] = false;
  RowChange change(samples, keep, found.filler, birth);
  const Played played = play(tape, PlayOptions(), &change);
  if (!played.why_not.empty() || (birth && !change.bad().has_value())) return true;
  return !(birth ? *change.bad() : failed(played));
}

// Of the inputs that have as many rows, what the loader gave is samples, and what operators of the step wrote may hold
// them: are they what makes it fail? A mask of features that the program wrote down, and that has as many elements, is
// none.
bool of_loader(const Tape& tape, const Inputs& inputs, const std::optional<JudgedCall>& birth,
               const GuiltyRows& found) {
  std::set<capture::StorageId> from_outside;  // written by no operator
  for (const capture::Entry& entry : tape.entries) {
    if (entry.kind == capture::Entry::kFill) from_outside.insert(entry.number);
    if (entry.kind != capture::Entry::kCall || entry.number >= tape.operators.size() ||
        !tape.operators[entry.number].name.ends_with('_'))
      continue;
    capture::for_each_tensor(entry.results, [&](const capture::TensorRef& t) { from_outside.erase(t.storage); });
  }
  Inputs loaded;
  std::ranges::copy_if(inputs, std::back_inserter(loaded), [&](const BatchInput& input) {
    return input.loaded ||
           (tape.storages[input.storage].origin != capture::Storage::kInput && from_outside.count(input.storage) == 0);
  });
  return loaded.size() == inputs.size() || found.more || heals_in(tape, loaded, birth, found);
}

// The same of what no loader gave: without rows that lie across those of the batch (a weight for each class).
bool of_rows(const Tape& tape, const Sizes& sizes, const Inputs& inputs, const std::optional<JudgedCall>& birth,
             const GuiltyRows& found) {
  std::vector<std::pair<std::int64_t, BatchInput>> all;
  for (const auto& [rows, group] : sizes)
    for (const BatchInput& input : group) all.emplace_back(rows, input);
  const std::vector<bool> aside = lie_crosswise(tape, inputs, found.rows, all);
  Inputs samples;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!aside[i]) samples.push_back(inputs[i]);
  return samples.size() == inputs.size() || found.more || heals_in(tape, samples, birth, found);
}

// A number for each sample, in a list (the lengths of ctc_loss): no row of a tensor can be replaced there.
bool takes_a_number_for_each(const capture::Entry& entry) {
  const auto is_list = [](const capture::Value& value) {
    return value.kind == capture::Value::kList && value.items.size() > 1 &&
           std::ranges::all_of(value.items, [](const auto& item) { return item.kind == capture::Value::kInt; });
  };
  return std::ranges::any_of(entry.args, [&](const capture::Value& list) {
    if (!is_list(list)) return false;
    bool found = false;
    capture::for_each_tensor(entry.args, [&](const capture::TensorRef& t) {
      found = found || (!t.sizes.empty() && t.sizes[0] == static_cast<std::int64_t>(list.items.size()));
    });
    return found;
  });
}

bool is_conclusive(const GuiltyRows& found) { return found.ran && !found.guilty.empty() && !found.together; }

}  // namespace

GuiltyRows find_guilty_rows(const Tape& tape, const record::Trace* trace, const std::vector<std::int64_t>& spare,
                            const std::optional<JudgedCall>& birth, const std::optional<std::size_t>& born_at,
                            double seconds) {
  const auto began = std::chrono::steady_clock::now();
  const auto has_time = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < seconds;
  };
  Sizes sizes;
  for (auto& [rows, inputs] : batch_inputs(tape, trace)) sizes.emplace_back(rows, std::move(inputs));
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return weight(a.first, a.second) > weight(b.first, b.second); });
  const bool forward = birth && birth->entry < tape.entries.size() && !tape.entries[birth->entry].of_backward;
  std::vector<std::optional<JudgedCall>> ways{std::nullopt};
  // What other ranks gave is as it was recorded, whatever the rows: no step of several ranks comes out finite.
  if (tape.setting("collectives") != nullptr) ways.clear();
  if (forward) ways.insert(birth->one_of_batches ? ways.begin() : ways.end(), birth);
  GuiltyRows best;
  for (std::size_t i = 0; i < ways.size() && has_time(); ++i) {
    GuiltyRows found = search_sizes(tape, sizes, spare, ways[i], has_time);
    found.replays += best.replays;
    if (i == 0 || is_conclusive(found) || !best.ran)
      best = std::move(found);
    else
      best.replays = found.replays;
    if (is_conclusive(best)) break;
  }
  if (!best.ran && !best.why_not.empty() && born_at && *born_at < tape.entries.size() &&
      takes_a_number_for_each(tape.entries[*born_at]))
    best.why_not += "; the numbers that it takes in a list, one for each sample, stayed as they were";
  const auto of_these = [&](const auto& size) { return size.first == best.rows; };
  if (const auto own = std::ranges::find_if(sizes, of_these); best.ran && own != sizes.end()) {
    const Reach reach = born_at ? rows_reach(tape, own->second, best.rows, *born_at) : Reach::kNot;
    const bool loaded = std::ranges::any_of(own->second, &BatchInput::loaded);
    const auto& judged = best.up_to_birth ? birth : std::nullopt;
    best.across = !loaded && !of_rows(tape, sizes, own->second, judged, best);
    best.of_batch = loaded ? of_loader(tape, own->second, judged, best) : reach == Reach::kRows && !best.across;
    best.of_samples = best.of_batch || (!loaded && reach == Reach::kTaken && !best.across);
    if (is_conclusive(best) && best.guilty.size() == 1 && !best.more)
      find_elements(tape, own->second, best.up_to_birth ? birth : std::nullopt, has_time, &best);
  }
  return best;
}

}  // namespace finitude::replay
