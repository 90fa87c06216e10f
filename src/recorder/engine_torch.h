// The recorder behind its public face: which steps are bad, what is done about them, what is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decide/policy.h"
#include "finitude/recorder.h"
#include "recorder/alarm_torch.h"
#include "recorder/document.h"
#include "recorder/second_run_torch.h"
#include "recorder/watched_torch.h"

namespace finitude::recorder {

using Closure = std::function<at::Tensor()>;

class Engine {
 public:
  explicit Engine(RecorderOptions options);
  ~Engine() { (void)finish(); }

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
  nlohmann::json report() const { return document_.whole(counters_); }
  std::string text() const;
  Status finish();

 private:
  // Runs work of our own. False: it failed, and the recorder is off.
  template <typename Work>
  bool safely(Work&& work) noexcept;
  void switch_off(const char* why) noexcept;

  Watched& of(torch::optim::Optimizer& optimizer);
  void begin(Watched& watched, bool* bad_at_start, StepResult* result);
  void take_losses(const at::Tensor& returned);
  StepResult unwatched(torch::optim::Optimizer& optimizer, const Closure& closure);
  StepResult search(Watched& watched, const Closure& closure);
  void apply(Watched& watched, StepResult* result);
  // To be called where something is bad. applied: the optimizer has stepped, and cannot be kept from it.
  decide::Action act(Watched& watched, nlohmann::json alarm, const Closure* closure, const SearchState* before, bool applied,
                     StepResult* result);
  void explain(Watched& watched, nlohmann::json& alarm, const Closure& closure, const SearchState* before);
  bool has_folder();
  void write_capsule(Watched& watched, nlohmann::json& alarm, SecondRun& run);
  Status write_reports();
  void say(const std::string& text) const noexcept;

  const RecorderOptions options_;
  const decide::Policy policy_;
  decide::PolicyMachine machine_;
  decide::SecondRuns second_runs_;
  Document document_;
  Counters counters_;
  Generators generators_;
  std::vector<std::unique_ptr<Watched>> watched_;
  std::uint32_t next_ordinal_ = 0;
  std::vector<Loss> losses_;     // of the step that is open
  SecondRun* again_ = nullptr;   // while a closure runs a second time
  std::string folder_;
  bool on_ = true, no_folder_ = false, finished_ = false;
};

}  // namespace finitude::recorder
