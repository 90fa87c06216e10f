// The recorder behind its public face: which steps are bad, what is done about them, what is written.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "capture/capsule_folder_posix.h"
#include "decide/policy.h"
#include "finitude/recorder.h"
#include "observe/no_warnings_torch.h"
#include "recorder/alarm_torch.h"
#include "recorder/buffers_torch.h"
#include "recorder/document.h"
#include "recorder/sameness_torch.h"
#include "recorder/second_run_torch.h"
#include "recorder/watched_torch.h"
#include "store/writer_posix.h"

namespace finitude::recorder {

using Closure = std::function<at::Tensor()>;

class Engine {
 public:
  explicit Engine(RecorderOptions options);
  ~Engine() {
    (void)finish();
    close_store();
  }

  void watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters, const NamedTensors& buffers);
  void watch(const at::Generator& generator);
  void forget(const torch::optim::Optimizer& optimizer);

  StepResult step(torch::optim::Optimizer& optimizer, const Closure& closure);
  StepResult gate(torch::optim::Optimizer& optimizer, const at::Tensor& loss);
  void loss(const at::Tensor& loss);
  void scan(torch::optim::Optimizer& optimizer);
  void input(const std::string& name, const at::Tensor& tensor);

  bool running_again() const noexcept { return again_ != nullptr; }
  bool is_on() const noexcept { return on_; }
  const std::string& folder() const noexcept { return folder_; }
  nlohmann::json report();
  std::string text();
  Status finish();

 protected:
  // Runs work of our own. False: it failed, and the recorder is off.
  template <typename Work>
  bool safely(Work&& work) noexcept;

 private:
  void switch_off(const char* why) noexcept;

  Watched& of(torch::optim::Optimizer& optimizer);
  void begin(Watched& watched, bool* bad_at_start, StepResult* result);
  // Loss and gradients of the step that is open. written_only: not the gradients that nothing has written since it
  // began.
  void look(Watched& watched, const at::Tensor& returned, StepResult* result, bool written_only = false);
  StepResult judged(torch::optim::Optimizer& optimizer, const Closure& closure);
  StepResult unwatched(torch::optim::Optimizer& optimizer, const Closure& closure);
  StepResult search(Watched& watched, const Closure& closure);
  void apply(Watched& watched, StepResult* result);
  // A step that is applied goes into the history; what is to be warned of is printed and listed.
  void keep(Watched& watched, std::uint64_t step, double loss);
  // The closure, or the optimizer that calls it, has thrown: what there is to see of it, an alarm or nothing. True: an
  // alarm for which the policy leaves the step out.
  bool look_at_thrown(Watched& watched, const char* what);
  // Where the optimizer is when something is bad: it can be kept from the step, it has stepped, or its step was
  // thrown out of.
  enum class Stepped { kNotYet, kAlready, kThrown };
  // What there is to run again, and what it came to. Null, or empty: cannot be run again.
  struct Again {
    const Closure* closure = nullptr;
    const SearchState* before = nullptr;
    at::Tensor returned;
  };
  // To be called where something is bad.
  decide::Action act(Watched& watched, incident::Alarm alarm, const Again& again, Stepped stepped, StepResult* result);
  void explain(Watched& watched, incident::Alarm& alarm, const Again& again);
  // Generators and buffers, as the step began.
  void put_back(Watched& watched);
  bool has_folder();
  // engine_store_torch.cpp. Of an optimizer whose first step comes; of a step that is applied; at the end, and before
  // the destructor of the writer, which must not run in the child of a fork.
  void open_store();
  void name_in_store(const Watched& watched);
  void store_step(const Watched& watched, std::uint64_t step, double loss);
  void close_store();
  void write_capsule(Watched& watched, incident::Alarm& alarm, SecondRun& run);
  // Capsules that are written beside the program: what has come of them; until there are none any more.
  void settle_capsules();
  void say_left_behind(const std::vector<capture::LeftBehind>& left) const noexcept;
  void finish_capsules();
  nlohmann::json whole_report() const;
  Status write_reports();
  void report_unwritten(const Status& status);  // once
  void say(const std::string& text) const noexcept;

  const RecorderOptions options_;
  const decide::Policy policy_;
  decide::PolicyMachine machine_;
  decide::SecondRuns second_runs_;
  Document document_;
  incident::Counters counters_;
  Generators generators_;
  Buffers buffers_;
  std::vector<std::unique_ptr<Watched>> watched_;
  std::vector<incident::ZeroRow> ended_in_zeros_;  // of optimizers that are no longer watched
  std::uint32_t next_ordinal_ = 0;
  int warning_lines_ = 0;
  std::vector<Loss> losses_;                            // of the step that is open
  NamedInputs inputs_, inputs_again_;                   // of it, and of its second run
  SecondRun* again_ = nullptr;                          // while a closure runs a second time
  std::map<std::string, std::uint64_t> pending_;        // folder of a capsule that is being written -> its step
  std::string folder_, no_folder_;                      // the latter: why there is none
  std::unique_ptr<store::Writer> store_;                // store.sqlite, where there is a folder that can hold it
  std::vector<float> stored_gradients_, stored_norms_;  // of the step being stored
  bool store_has_begun_ = false;
  bool on_, reported_unwritten_ = false, finished_ = false;
  bool inside_ = false;  // a step is open
};

template <typename Work>
bool Engine::safely(Work&& work) noexcept {
  try {
    const observe::NoWarnings quiet;
    work();
    return true;
  } catch (const std::exception& e) {
    switch_off(e.what());
  } catch (...) {
    switch_off("an unknown exception");
  }
  return false;
}

}  // namespace finitude::recorder
