// One optimizer as the recorder knows it: what its parameters are called, what they were when the step began, and what
// its last steps were like.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "explain/explain.h"
#include "finitude/recorder.h"
#include "incident/onset.h"
#include "observe/gradient_look_torch.h"
#include "observe/seen_torch.h"
#include "signal/step_watch.h"

namespace finitude::recorder {

// Null where it has none. Warns of nothing, as at::Tensor::grad() may.
const at::Tensor* gradient_of(const at::Tensor& parameter);

// The generators that steps draw from: the default one, and the program's own.
class Generators {
 public:
  Generators();
  void add(const at::Generator& generator);
  void take(std::vector<std::string>* states) const;
  void put_back(const std::vector<std::string>& states) const noexcept;

 private:
  std::vector<at::Generator> all_;
};

class Watched {
 public:
  Watched(torch::optim::Optimizer& optimizer, std::uint32_t ordinal);

  void name(const NamedTensors& parameters);

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const std::string& class_name() const { return class_name_; }
  std::uint32_t ordinal() const { return ordinal_; }

  // visit(index, parameter), groups in order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    std::size_t index = 0;
    for (const auto& group : optimizer_->param_groups()) {
      for (const at::Tensor& p : group.params()) visit(index++, p);
    }
  }
  std::string name_of(std::size_t index, const at::Tensor& parameter) const;

  // Generators as they are now, and which gradients the parameters have.
  void begin_step(const Generators& generators);
  const std::vector<std::string>& generators_at_start() const { return generators_; }
  bool had_gradient(std::size_t index) const { return index < had_.size() && had_[index].gradient != nullptr; }
  // Its gradient may have been bad as the step began, and is the tensor that it was then: the step has added to it at
  // most.
  bool began_bad(std::size_t index, const at::Tensor& parameter) const;
  // It is what the last step left bad, and nothing of this step is in it.
  bool left_bad(std::size_t index, const at::Tensor& parameter) const;

  // Reads every gradient. `bad` or'ed into what is known of earlier looks in this step. written_only: not what
  // left_bad().
  void look_at_gradients(bool written_only = false);
  const std::vector<observe::GradMark>& marks() const { return marks_; }
  bool was_bad(std::size_t index) const { return index < bad_.size() && bad_[index]; }
  std::uint64_t gradients_read() const { return read_; }
  // Where gradients lie that cannot be read, "cuda:0"; empty: all of the last look were.
  const std::string& unread() const { return unread_; }

  // After the optimizer has stepped: the index of a parameter that is not finite, or -1. All are read after the first
  // two steps, and a 64th of them after each later one.
  std::int64_t look_at_written();
  double largest_parameter() const;
  // All parameters were found finite before the first step.
  void found_finite_at_start();
  // How many steps had been taken when this one was read last, and was finite. Empty: it never was.
  std::optional<std::uint64_t> steps_when_finite(std::size_t index) const;
  // Something wrote it after the optimizer's last step.
  bool is_written_since_step(std::size_t index, const at::Tensor& parameter) const;

  // Of a step that is applied. Returns what is to be warned of.
  std::vector<signal::Warning> keep_history(std::uint64_t step, double loss);
  // Of a step that is applied. is_loss_zero: nothing is to be learned from it.
  void count_zero_gradients(bool is_loss_zero);
  // Applied steps in a row, up to now, in which every gradient was exactly zero, though an earlier one was not.
  std::uint64_t zero_steps() const { return zero_steps_; }
  std::vector<std::string> names() const;  // of all parameters, in order
  explain::StepHistory history() const;    // the last steps
  // The last 4096 of the applied steps, oldest first.
  std::vector<incident::AppliedStep> applied() const { return {points_.begin(), points_.end()}; }

  std::uint64_t steps = 0;  // that were judged
  bool has_begun = false;   // its first step has
  bool damaged = false;     // parameters are known not to be finite
  double largest_at_start = 0;

 private:
  torch::optim::Optimizer* optimizer_;
  std::string class_name_;
  std::uint32_t ordinal_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::vector<std::string> generators_;
  struct Had {
    const c10::TensorImpl* gradient = nullptr;  // to distinguish one from another; not to be looked into
    std::uint32_t version = 0;
    bool clean = false, bad = false;          // it is as the last step left it: finite, or not
    std::optional<observe::WeakTensor> held;  // bad: the gradient, as another may come to lie at the same address
  };
  std::vector<Had> had_;
  std::vector<bool> bad_;
  std::vector<observe::GradMark> marks_;
  std::uint64_t read_ = 0;
  std::string unread_;
  std::size_t slice_ = 0;
  std::uint64_t zero_steps_ = 0;
  bool had_gradient_ = false;  // in some step it was not zero
  struct Seen {
    std::uint64_t finite_after = kNever;
    std::uint32_t version = 0;  // as the optimizer left it
  };
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::vector<Seen> seen_;
  std::deque<incident::AppliedStep> points_;
  std::optional<signal::StepWatch> watch_;
  std::vector<float> largest_;  // of each gradient, of the step that `watch_` is given
};

// What cannot be read is.
bool is_finite(const at::Tensor& tensor) noexcept;

// The learning rate of the first group, and eps where its options have one; 0 where they have none.
double learning_rate(const torch::optim::Optimizer& optimizer) noexcept;
double eps_of(const torch::optim::Optimizer& optimizer) noexcept;

}  // namespace finitude::recorder
