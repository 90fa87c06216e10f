#include "explain/fill.h"

#include <algorithm>
#include <string>

#include "explain/evidence.h"
#include "explain/recomputed.h"

namespace finitude::explain {
namespace {

constexpr const char* kClass = "uninitialised-memory";

// The frame that called for it: of the call, or of the one that it is a part of.
const record::Frame* line_of(const record::Trace& trace, record::OpId id) {
  for (int depth = 0; id < trace.ops.size() && depth < 16; ++depth, id = trace.ops[id].parent) {
    const std::uint32_t stack = trace.ops[id].stack;
    if (stack < trace.stacks.size() && !trace.stacks[stack].frames.empty()) return &trace.stacks[stack].frames.front();
  }
  return nullptr;
}

void blame(Finding& finding, const replay::FillTrial& trial, const record::Trace* trace) {
  if (finding.cause_class != kClass) {
    // What was predicted of another cause says nothing of this one.
    for (Experiment& e : finding.experiments) e.predicted = e.confirms = false;
    finding.cause_class = kClass;
    finding.text =
        trial.op +
        " hands out memory with whatever it held before, and it is read before anything is written; with zeros there "
        "the step is finite";
    finding.fix_text = "initialise it (torch.zeros, nn.init, copy_) before the first read";
    finding.fix_file.clear();
    finding.fix_line = 0;
    finding.edits.clear();  // they mend what the content went through
    finding.handed_out_by = trial.made;
    if (const record::Frame* frame = trace != nullptr ? line_of(*trace, trial.made) : nullptr) {
      finding.fix_file = frame->file;
      finding.fix_line = frame->line;
    }
    if (const record::OpId cut = trace != nullptr ? cut_off_in(*trace, trial.made) : record::kNone;
        cut != record::kNone) {
      report_cut_off(*trace, cut, trial.made, &finding);
      finding.handed_out_by = record::kNone;
      finding.text += "; with zeros there the step is finite";
    }
  }
  finding.confidence = trial.nans.ran ? "proven" : "likely";  // one experiment is no proof
}

std::string filled_outcome(const replay::StepTrial& one, const std::string& judged) {
  std::string outcome = one.bad.empty() ? judged + " finite" : "not finite: " + one.bad.front();
  if (one.bad.size() > 1) outcome += " and " + std::to_string(one.bad.size() - 1) + " more";
  if (!one.difference.empty()) outcome += ", " + one.difference;
  return outcome;
}

std::string filled_with(const replay::FillTrial& trial, const char* what) {
  return "whole step, " + counted(trial.bytes, "byte") + " of " + trial.op + " that nobody had written filled with " +
         what;
}

}  // namespace

void judge_fill(Finding& finding, const replay::FillTrial& trial, const record::Trace* trace) {
  const bool decides = trial.zeros.ran && trial.zeros.bad.empty() && !(trial.nans.ran && trial.nans.bad.empty());
  if (decides) blame(finding, trial, trace);
  const auto add = [&](const char* what, const replay::StepTrial& one) {
    if (one.ran)
      finding.experiments.push_back({filled_with(trial, what), filled_outcome(one, finding.judged), decides, decides});
  };
  add("0", trial.zeros);
  add("NaN", trial.nans);
}

std::optional<Finding> finding_of_chance(const replay::FillTrial& trial, const record::Trace& trace,
                                         const std::string& judged) {
  if (!trial.nans.ran || trial.nans.bad.empty() || trial.made >= trace.ops.size()) return std::nullopt;
  Finding finding;
  finding.born_in = trial.made;
  finding.cause_class = kClass;
  finding.confidence = "likely";  // what the memory held in the first run is gone
  finding.text =
      trial.op +
      " hands out memory with whatever it held before, and the step reads some of it that nothing has written";
  finding.fix_text = "initialise all of it (torch.zeros, nn.init, copy_) before the first read";
  if (const record::Frame* frame = line_of(trace, trial.made)) {
    finding.fix_file = frame->file;
    finding.fix_line = frame->line;
  }
  if (const record::OpId cut = cut_off_in(trace, trial.made); cut != record::kNone) {
    finding.born_in = cut;
    report_cut_off(trace, cut, trial.made, &finding);
  }
  finding.text += ": that holds something else in each run, and the step failed in one and not in the other";
  finding.experiments.push_back({filled_with(trial, "NaN"), filled_outcome(trial.nans, judged), true});
  if (trial.zeros.ran)
    finding.experiments.push_back({filled_with(trial, "0"), filled_outcome(trial.zeros, judged), true});
  return finding;
}

}  // namespace finitude::explain
