#include "replay/step_lab_torch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "replay/edit_sites_torch.h"
#include "replay/edited_step_torch.h"
#include "replay/fill_unwritten_torch.h"
#include "replay/guilty_rows.h"
#include "replay/kept_values_torch.h"
#include "replay/rounding_noise_torch.h"
#include "replay/traced_calls.h"

namespace finitude::replay {
namespace {

constexpr int kNoisePatterns = 3;
constexpr std::size_t kMaxKept = std::size_t{1} << 30;  // bytes of the unchanged step

std::string reason_of(const Played& played) {
  if (!played.missing.empty()) return "operators of other libraries: " + played.missing.front();
  return played.why_not;
}

void set_given_apart(const capture::Tape& tape, const EditSites& sites, StepTrial* trial) {
  for (std::size_t i = 0; i < tape.outcomes.size() && i < sites.outcome_reached.size(); ++i) {
    const auto at = std::ranges::find(trial->bad, outcome_name(tape.outcomes[i]));
    if (sites.outcome_reached[i] || at == trial->bad.end()) continue;
    trial->given.push_back(std::move(*at));
    trial->bad.erase(at);
  }
}

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

// Of a step that is only evaluated, or that an exception ended before backward, no gradient was recorded.
std::string judged_in(const capture::Tape& tape) {
  const auto has = [&](const char* kind) {
    return std::ranges::any_of(tape.outcomes, [&](const capture::Outcome& o) { return o.kind == kind; });
  };
  // What a check of the program refused is judged in the place of the loss: the step has none by then.
  const auto value =
      std::ranges::find_if(tape.outcomes, [](const capture::Outcome& o) { return is_refused_value(o.kind, o.name); });
  if (value != tape.outcomes.end() && tape.outcomes.size() == 1) return "value " + value->name;
  const bool loss = has("loss"), gradients = has("gradient");
  if (loss && gradients) return "loss and gradients";
  return loss ? "loss" : gradients ? "gradients" : "what was recorded of the step";
}

std::string TorchStepLab::faithful() {
  if (!tape_.gaps.empty()) return tape_.gaps.front();
  // What changes a step reads and writes its values where the host can.
  for (const std::string& device : tape_.devices) {
    if (device != "cpu") return "the step was one of " + device;
  }
  const Clock clock;
  const Played played = play(tape_, {});
  step_seconds_ = clock.seconds();
  if (std::string why = reason_of(played); !why.empty()) return why;
  if (played.outcomes.empty()) return "the record of the step holds nothing to compare with";
  return played.identical() ? "" : "a replay of the unchanged step comes out with other bits";
}

StepTrial TorchStepLab::play_edited(const Edit& edit, const EditSites& sites, const KeptValues& before) const {
  StepTrial trial;
  const bool computes = edit.kind == Edit::Kind::kCompute;
  PlayOptions options;
  if (computes && edit.dtype) options.dtype = sense::info(*edit.dtype).name;
  EditedStep step(tape_, sites, edit, before);
  trial.why_not = reason_of(play(tape_, options, &step));
  if (trial.why_not.empty() && !computes && !step.did_something()) trial.why_not = "it changes nothing in this step";
  trial.ran = trial.why_not.empty();
  trial.bad = std::move(step.bad);
  if (tape_.setting("collectives") != nullptr) set_given_apart(tape_, sites, &trial);
  trial.difference = std::move(step.difference);
  trial.compared = step.compared;
  return trial;
}

StepTrial TorchStepLab::run(const Edit& edit) {
  StepTrial trial;
  const Clock clock;
  try {
    const EditSites sites = find_sites(tape_, trace_, edit);
    trial.why_not = sites.why_not;
    if (!trial.why_not.empty()) return trial;
    const bool computes = edit.kind == Edit::Kind::kCompute;
    const bool rounds = computes || edit.kind == Edit::Kind::kShift;  // an exponent by a rounding of its own size
    KeptValues before(sites, kMaxKept, computes);
    if (!edit.finite_only) trial.why_not = reason_of(play(tape_, {}, &before));
    if (!trial.why_not.empty()) return trial;
    trial = play_edited(edit, sites, before);
    // Rounding adds up from call to call: how far it alone moves the values is measured, once they are too far off for
    // one rounding.
    if (rounds && trial.bad.empty() && trial.ran && !trial.difference.empty()) {
      for (int pattern = 0; pattern < kNoisePatterns; ++pattern) {
        RoundingNoise noise(before, pattern);
        play(tape_, {}, &noise);
      }
      trial = play_edited(edit, sites, before);
      trial.rounding_in = before.coarsest_format();
    }
  } catch (const std::exception& e) {
    trial = {};
    trial.why_not = e.what();
  }
  trial.seconds = clock.seconds();
  return trial;
}

namespace {

// Ends a replay after one call, and keeps the first of its results.
class UntilCall : public PlayObserver {
 public:
  UntilCall(std::size_t entry, EditedStep* edited) : entry_(entry), edited_(edited) {}
  void change(std::size_t index, const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) override {
    if (edited_) edited_->change(index, schema, arguments);
  }
  bool after(const PlayedCall& call) override {
    if (call.index != entry_) return !edited_ || edited_->after(call);
    if (!call.results.empty() && call.results.front().isTensor()) result = call.results.front().toTensor().clone();
    return false;
  }
  at::Tensor result;

 private:
  const std::size_t entry_;
  EditedStep* const edited_;
};

}  // namespace

std::vector<double> TorchStepLab::beside(const Beside& beside, double value) {
  std::vector<double> values;
  try {
    Edit edit = beside.zeros;
    edit.from = 0;
    edit.to = value;
    edit.spread = beside.uneven ? 99 : 0;  // far from equal: two decades
    edit.in_all_arguments = true;
    const EditSites sites = find_sites(tape_, trace_, edit);
    const auto entry = TracedCalls(tape_, trace_).entry_of(beside.call);
    if (!sites.why_not.empty() || !entry) return values;
    UntilCall unchanged(*entry, nullptr);
    play(tape_, {}, &unchanged);
    const KeptValues nothing(sites, 0, false);
    EditedStep step(tape_, sites, edit, nothing);
    UntilCall changed(*entry, &step);
    PlayOptions options;
    options.dtype = "float64";
    play(tape_, options, &changed);
    if (!unchanged.result.defined() || !changed.result.defined() || !step.did_something() ||
        unchanged.result.sizes() != changed.result.sizes())
      return values;
    const at::Tensor found = changed.result.to(at::kDouble).masked_select(unchanged.result.isnan()).contiguous();
    values.assign(found.const_data_ptr<double>(), found.const_data_ptr<double>() + found.numel());
  } catch (const std::exception&) {
    values.clear();
  }
  return values;
}

Repeats TorchStepLab::repeats(int times, int threads) {
  Repeats found;
  found.threads = threads > 0 ? threads : at::get_num_threads();
  for (const auto& [name, value] : tape_.settings)
    if (threads == 0 && name == "threads") found.threads = std::atoi(value.c_str());
  std::vector<std::uint64_t> first;
  PlayOptions options;
  options.threads = threads;
  for (int i = 0; i < times; ++i) {
    const Played played = play(tape_, options);
    if (!played.missing.empty() || !played.why_not.empty()) return {};
    std::vector<std::uint64_t> bits;
    for (const PlayedOutcome& outcome : played.outcomes) bits.push_back(outcome.got);
    if (i == 0) first = bits;
    found.has_results = !bits.empty();
    ++found.runs;
    found.alike += bits == first;
    found.with_bad += !played.bad().empty();
  }
  return found;
}

StepTrial TorchStepLab::deterministic() {
  StepTrial trial;
  PlayOptions options;
  options.deterministic = true;
  const Clock clock;
  const Played played = play(tape_, options);
  trial.seconds = clock.seconds();
  trial.why_not = reason_of(played);
  trial.ran = trial.why_not.empty();
  trial.bad = played.bad();
  return trial;
}

GuiltyRows TorchStepLab::guilty_rows(const std::vector<std::int64_t>& spare, const JudgedOp& of, double seconds) {
  const record::OpId birth = of.op;
  std::optional<JudgedCall> judged;
  if (const auto entry = TracedCalls(tape_, trace_).entry_of(birth)) {
    judged.emplace().entry = *entry;
    if (tape_.entries[*entry].traced == birth) judged->notes = of.notes;  // else the results are those of a part
    const std::vector<record::TensorUse>& outputs = trace_.ops[birth].outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      judged->nan_only |= outputs[i].health.nan != 0 && std::ranges::find(of.notes, i) == of.notes.end();
    const auto of_another = [&](const record::Op& op) {
      return op.phase == record::Phase::kBackward && op.micro_batch != trace_.ops[birth].micro_batch;
    };
    judged->one_of_batches = std::ranges::any_of(trace_.ops, of_another);
  }
  return find_guilty_rows(tape_, &trace_, spare, judged, judged ? judged->entry : first_reader(birth), seconds);
}

// What is no operator on the tape (a number that becomes a tensor) is read by one.
std::optional<std::size_t> TorchStepLab::first_reader(record::OpId birth) const {
  if (birth >= trace_.ops.size()) return std::nullopt;
  const auto reads = [&](const record::TensorUse& use) {
    return std::ranges::any_of(trace_.ops[birth].outputs, [&](const record::TensorUse& made) {
      return made.storage != record::kNone && use.storage == made.storage && use.begin < made.end &&
             made.begin < use.end;
    });
  };
  const TracedCalls calls(tape_, trace_);
  for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
    const record::OpId traced = tape_.entries[i].traced;
    if (traced > birth && calls.stands_for(tape_.entries[i], traced) &&
        std::ranges::any_of(trace_.ops[traced].inputs, reads))
      return i;
  }
  return std::nullopt;
}

FillTrial TorchStepLab::filled(double seconds) { return fill_unwritten(tape_, seconds); }

const LastUpdate& TorchStepLab::last_update() {
  if (!last_update_) last_update_ = find_update_ ? find_update_() : LastUpdate{{}, "the optimizer is not known"};
  return *last_update_;
}

StepTrial TorchStepLab::after_share_of_update(double share) {
  return play_on_earlier_weights(tape_, last_update(), share);
}

int TorchStepLab::again(int times) {
  int same = 0;
  for (int i = 0; i < times; ++i) same += play(tape_, {}).identical();
  return same;
}

}  // namespace finitude::replay
