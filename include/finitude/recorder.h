// Watches a training loop of a C++ program on libtorch. A step whose loss or gradients are not finite is kept from the
// optimizer, run a second time under a trace, explained, reported, and left behind as a capsule.
//
//   finitude::Recorder recorder;
//   recorder.watch(optimizer, *net);
//   for (auto& batch : *loader) {
//     const auto step = recorder.step(optimizer, [&] {
//       optimizer.zero_grad();
//       torch::Tensor loss = loss_of(net->forward(batch.data), batch.target);
//       loss.backward();
//       return loss;
//     });
//     if (!step.status.ok()) break;    // the policy says stop; the report is on stderr and in finitude-runs/
//   }
//
// docs/cpp.md. Link Finitude::torch. CPU tensors only; the values of others are not looked at.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "finitude/export.h"
#include "finitude/report.h"
#include "finitude/scope.h"
#include "finitude/status.h"

// Of torch the names alone: whoever calls a Recorder has included its headers.
namespace at {
class Tensor;
struct Generator;
}  // namespace at
namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace finitude {

// What is done about a bad step. The words are those of `finitude run --on-alarm`.
enum class OnAlarm : std::uint8_t {
  kStop,   // left out and explained; the status of the step is not ok. Where only the loss is bad: as kWarn, up to
           // max_skips in a row
  kSkip,   // left out and explained; training goes on, and stops after max_skips in a row
  kWarn,   // explained and applied
  kRaise,  // as kStop, but not run a second time
};

struct RecorderOptions {
  bool on = true;  // false, or FINITUDE=0 in the environment: steps are taken as without a recorder, and nothing is
                   // said or written
  OnAlarm on_alarm = OnAlarm::kStop;
  std::uint32_t max_skips = 10;
  std::string runs = "finitude-runs";  // each run gets a folder there; empty: nothing is written but `report`
  std::string report;                  // a further place for report.json; empty: none
  std::uint32_t capsules = 8;          // of a run, the newest; 0: none
  std::uint64_t capsule_max_bytes = std::uint64_t{2} << 30;  // of inputs that a capsule may hold
  bool redact = false;  // capsules with statistics instead of values; docs/capsules.md
  double experiments =
      60;  // seconds that trying the fix on the captured step may take, at most 20 times that step; 0: none
  // Lines from the program's debug information, read by addr2line in a process of its own, and only when a step is
  // explained. Without it, or where there is none, the innermost FINITUDE_HERE is the line.
  bool debug_lines = true;
  std::function<void(std::string_view text)> say;  // gets what is meant for people; empty: stderr
};

// The defaults, or `base`, with what FINITUDE_ON_ALARM, FINITUDE_MAX_SKIPS, FINITUDE_RUNS, FINITUDE_REPORT,
// FINITUDE_CAPSULES, FINITUDE_CAPSULE_MAX (MB), FINITUDE_EXPERIMENTS (seconds), FINITUDE_REDACT and FINITUDE in the
// environment say. Fails where one of them cannot be understood.
FINITUDE_API Result<RecorderOptions> options_from_environment(RecorderOptions base = {});

struct StepResult {
  std::uint64_t step = 0;  // 0-based, of this optimizer; those that were left out count
  bool applied = true;     // the optimizer has stepped (gate(): it may)
  bool alarm = false;      // a line of the report is about this step
  Status status;           // not ok: the policy ends the training here; why() is one sentence
  double loss = 0;         // of a loss of one element; may be NaN
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// One per program is the usual, or one per thread that trains: its functions belong to that thread. At most one of a
// process explains a step at a time; a step that goes bad meanwhile is stopped all the same, and not explained. None of
// its functions throws: after a failure of its own it says so once and does nothing but what the loop would do without
// it (is_on()). What the closures and optimizers throw passes through. On or off, healthy training is bit-identical.
// Where training goes on after a bad step (kSkip, kWarn) its capsule is written, read back and replayed beside it, by a
// thread of its own: step() waits until its bytes are copied, the report names it as capsule_pending until it is there,
// and the end of the program waits for it.
class FINITUDE_API Recorder {
 public:
  explicit Recorder(RecorderOptions options = {});
  ~Recorder();  // as finish()
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Names for the optimizer's parameters, and the buffers that a step may change: those of `model`, or as listed. More
  // than one call adds. An optimizer that was never named is watched from its first step all the same. The optimizer
  // has to outlive the recorder or forget(); of tensors no reference is kept.
  void watch(torch::optim::Optimizer& optimizer);  // numbers for names, no buffers
  void watch(torch::optim::Optimizer& optimizer, const torch::nn::Module& model);
  void watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters);
  void watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters, const NamedTensors& buffers);
  void forget(const torch::optim::Optimizer& optimizer);
  // A CPU generator of the program's own that steps draw from; the default one always counts.
  void watch(const at::Generator& generator);

  // One step: calls `closure`, which computes all of it (zero_grad, forward, backward) and returns the loss; looks at
  // the loss and at every gradient that the optimizer owns; then calls optimizer.step(), or leaves it out. To explain a
  // bad step `closure` is called once more, with generators, buffers and gradients as they were at first: it must
  // compute the same, and may ask running_again(). After a step that was left out, parameters, optimizer state, buffers
  // and generators are those of before the call. For LBFGS, optimizer.step(closure) is called, and what it leaves is
  // judged. A step within the closure of another is taken, not judged, and not taken again in a second run.
  [[nodiscard]] StepResult step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);

  // For loops that cannot hand over a closure: judges loss and gradients as they are. The caller steps where `applied`.
  // There is no second run, so that the report says what is bad, but not why.
  [[nodiscard]] StepResult gate(torch::optim::Optimizer& optimizer, const at::Tensor& loss);

  // Inside a closure. Of several losses (micro-batches): each, before its backward.
  void loss(const at::Tensor& loss);
  // Inside a closure, before something rewrites gradients (clipping): looks at them now. step() does not forget.
  void scan(torch::optim::Optimizer& optimizer);
  // Inside a closure: names what the step is fed with, so that bad data is told from bad arithmetic.
  void input(const std::string& name, const at::Tensor& tensor);
  // Is this call of the closure the second?
  bool running_again() const noexcept;

  bool is_on() const noexcept;
  // The folder of this run; empty as long as nothing was written.
  std::string folder() const;
  // What was seen so far, as it will be written: docs/report.schema.json.
  std::string report_json() const;
  Result<Report> report() const;
  // The same in words.
  std::string report_text() const;

  // Waits for capsules that are still being written, writes report.json and report.html and says the closing line.
  // Once; steps after it are not watched.
  Status finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace finitude
