// Watches the training loop of a C++ program on libtorch. A step whose loss or gradients are not finite is kept from
// the optimizer (vetoed), run a second time under a trace, explained, reported, and written as a capsule.
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
// docs/cpp.md. Link Finitude::torch. CPU tensors only: values on other devices are not read, the report says so, and no
// function here synchronizes with a GPU.
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

// Of torch only the names: code that calls a Recorder includes torch's headers itself.
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
  // The step is vetoed and explained; its StepResult::status is not ok. If only the loss is bad: as kWarn, for up to
  // max_skips such steps in a row.
  kStop,
  // The step is vetoed and explained, and training continues. After max_skips bad steps in a row: as kStop.
  kSkip,
  // The step is explained and applied.
  kWarn,
  // As kStop, but without a second run: the report says what is bad, not why.
  kRaise,
};

// Options of a Recorder. They are read once, by its constructor.
struct RecorderOptions {
  // False, or FINITUDE=0 in the environment: steps run as without a recorder, and nothing is printed or written.
  bool on = true;
  OnAlarm on_alarm = OnAlarm::kStop;
  // See OnAlarm. Counted for each optimizer; a good step ends the row.
  std::uint32_t max_skips = 10;
  // Bad steps of an optimizer in all; the one after them ends the program whatever on_alarm says. 0: no limit.
  std::uint32_t max_bad = 0;
  // What to warn of while values are still finite: "all", "off", or names with commas (docs/warnings.md).
  std::string warnings = "all";
  // Folder, made if needed, in which this run gets a folder of its own. Empty: only `report` is written.
  std::string runs = "finitude-runs";
  // Path of a second copy of report.json. Empty: none.
  std::string report;
  // Capsules of this run that are kept, the newest ones. 0: none is written.
  std::uint32_t capsules = 8;
  // Limit on the inputs of one capsule, in bytes. A larger step gets no capsule, and the report says so. 0: none is
  // written.
  std::uint64_t capsule_max_bytes = std::uint64_t{2} << 30;
  // Write statistics instead of values into capsules: docs/capsules.md.
  bool redact = false;
  // Limit on the time for trying the fix on the recorded step, in seconds; also limited to 20 times that step. 0: it is
  // not tried.
  double experiments = 60;
  // Take lines from the program's debug information. addr2line reads it in a process of its own, only when a step is
  // explained. If false, or if there is none, the innermost FINITUDE_HERE is the line.
  bool debug_lines = true;
  // Called with each text for people, in the thread that calls the recorder. Exceptions from it are dropped. Empty: the
  // text goes to stderr.
  std::function<void(std::string_view text)> say;
};

// `base` with the values that are set in the environment: FINITUDE_ON_ALARM, FINITUDE_MAX_SKIPS, FINITUDE_RUNS,
// FINITUDE_REPORT, FINITUDE_CAPSULES, FINITUDE_CAPSULE_MAX (MB), FINITUDE_EXPERIMENTS (seconds), FINITUDE_REDACT and
// FINITUDE (1, on, 0 or off). An empty variable counts as not set. A Recorder does not call this for its options: pass
// it the result.
//
// Errors: kInvalidArgument, if a value cannot be understood; why() names the variable. Reads the environment, so no
// other thread may change it meanwhile.
FINITUDE_API Result<RecorderOptions> options_from_environment(RecorderOptions base = {});

// What became of one step.
struct StepResult {
  // 0-based number of the step among those of this optimizer. Vetoed steps count.
  std::uint64_t step = 0;
  // True: the optimizer has stepped. From gate(): it may.
  bool applied = true;
  // True: the report has an alarm about this step.
  bool alarm = false;
  // kStopped: the policy ends the training here; why() is one sentence. kInvalidArgument: the closure is empty. A bad
  // step after which training continues is ok.
  Status status;
  // Value of the last loss if it has one element; may be NaN or Inf. 0 if it is not known.
  double loss = 0;
};

// (name, tensor) pairs.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Watches the optimizers of one thread.
//
// Threads. A program has one Recorder, or one per thread that trains. All functions of an object are called from one
// thread at a time; nothing in it is locked. At most one Recorder of a process explains a step at a time: a step that
// goes bad meanwhile in another thread is handled by the policy, but not explained.
//
// Errors. No function throws for a failure of its own. After such a failure the recorder reports it once, switches
// itself off (is_on()), and each step does only what the loop would do without it. Exceptions from closures and
// optimizers pass through.
//
// Blocking. A healthy step only reads memory. A bad step blocks for its second run, and for the experiments. If
// training continues after it (kSkip, kWarn), a thread of its own writes the capsule, reads it back and has it replayed
// by finitude-replay (if that is not installed with the library, step() replays it itself): step() waits only until the
// bytes are copied, the report has capsule_pending until the capsule is complete, and the end of the program waits for
// it.
//
// With or without a recorder, on or off, healthy training computes the same bits.
class FINITUDE_API Recorder {
 public:
  // Takes the options. Creates no file and no folder: the folder of the run is made with the first report.
  explicit Recorder(RecorderOptions options = {});
  // Calls finish().
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Names the parameters of an optimizer for the report, and the buffers that its steps may change, so that a veto
  // restores them. They are those of `model`, or the listed ones; the overload without either gives numbers as names,
  // and no buffers. Calls add to each other. An optimizer that was not named is watched from its first step anyway.
  //
  // `optimizer` is not owned: it has to outlive the recorder, or the call of forget(). `model` is not kept, and tensors
  // are not kept alive. Undefined tensors are ignored.
  void watch(torch::optim::Optimizer& optimizer);
  void watch(torch::optim::Optimizer& optimizer, const torch::nn::Module& model);
  void watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters);
  void watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters, const NamedTensors& buffers);
  // Drops everything that is known of `optimizer`; call it before the optimizer dies. Does nothing if it is not known.
  // Not inside a closure.
  void forget(const torch::optim::Optimizer& optimizer);
  // Adds a CPU generator that steps draw from, so that its state is restored for a second run and after a veto. Torch's
  // default CPU generator is always included. A reference to it is kept.
  void watch(const at::Generator& generator);

  // Runs one step: calls `closure`, which computes all of it (zero_grad, forward, backward) and returns the loss; reads
  // the loss and every gradient that the optimizer owns; then calls optimizer.step(), or not.
  //
  // To explain a bad step, `closure` is called a second time, with generators, buffers and gradients as they were
  // before the first call. It has to compute the same again: take the batch and count outside of it, or ask
  // running_again(). After a veto, parameters, optimizer state, buffers and generators are as they were before the
  // call.
  //
  // For LBFGS, optimizer.step(closure) is called, and its result is judged; losses of single evaluations are not.
  // A step inside the closure of another one runs, is not judged, and is not run again. An empty closure does nothing
  // and gives kInvalidArgument. The returned loss may be undefined: then only the gradients, and what loss() got,
  // count.
  [[nodiscard]] StepResult step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);

  // For loops that have no closure: judges `loss` (may be undefined) and the gradients as they are now. The caller
  // calls optimizer.step() if `applied` is true. There is no second run, so the report says what is bad, but not why,
  // and buffers and generators are not restored. Not inside a closure.
  [[nodiscard]] StepResult gate(torch::optim::Optimizer& optimizer, const at::Tensor& loss);

  // Inside a closure that computes several losses (micro-batches): call it for each loss before its backward. The loss
  // that the closure returns is read by itself. Outside of a closure it has no effect.
  void loss(const at::Tensor& loss);
  // Inside a closure, before something rewrites gradients (clipping): reads the gradients of `optimizer` now. A bad one
  // counts for the step, whatever happens to it afterwards.
  void scan(torch::optim::Optimizer& optimizer);
  // Inside a closure: names an input of the step, so that bad data can be distinguished from bad arithmetic. Holds
  // `tensor` by a weak reference. An undefined one is ignored.
  void input(const std::string& name, const at::Tensor& tensor);
  // Inside a closure: is this its second call? Otherwise false.
  bool running_again() const noexcept;

  // False if it was switched off by options or environment, after finish(), and after a failure of its own.
  bool is_on() const noexcept;
  // Absolute path of the folder of this run. Empty until something was written.
  std::string folder() const;
  // The report up to now as the JSON document that will be written (docs/report.schema.json). Empty if it cannot be
  // made. These three functions also take in capsules that have been completed meanwhile; they do not wait for others.
  std::string report_json() const;
  // The same, parsed: errors as of parse_report().
  Result<Report> report() const;
  // The same as text for a terminal.
  std::string report_text() const;

  // Ends the watch: waits for capsules that are still being written, writes report.json and report.html, and prints the
  // closing line. Steps after it run unwatched. Only the first call does this; later ones, and those of a recorder that
  // was switched off by options or environment, return ok. Errors: kUnwritable.
  Status finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace finitude
