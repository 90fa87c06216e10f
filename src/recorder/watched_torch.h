// One optimizer as the recorder knows it: what its parameters and buffers are called, what they were when the step began, and
// what its last steps were like.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "explain/explain.h"
#include "finitude/recorder.h"
#include "observe/buffer_snapshot_torch.h"
#include "observe/gradient_look_torch.h"
#include "observe/seen_torch.h"

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

struct Buffer {
  std::string name;
  at::Tensor tensor;
};

class Watched {
 public:
  Watched(torch::optim::Optimizer& optimizer, std::uint32_t ordinal);

  void name(const NamedTensors& parameters, const NamedTensors& buffers);

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
  std::vector<Buffer> live_buffers() const;

  // Buffers and generators as they are now, and which parameters have gradients.
  void begin_step(const Generators& generators);
  const std::vector<std::string>& generators_at_start() const { return generators_; }
  bool had_gradient(std::size_t index) const { return index < had_.size() && had_[index]; }
  observe::BufferSnapshot& buffers_at_start() { return buffer_copies_; }

  // Reads every gradient. `bad` or'ed into what is known of earlier looks in this step.
  void look_at_gradients();
  const std::vector<observe::GradMark>& marks() const { return marks_; }
  bool was_bad(std::size_t index) const { return index < bad_.size() && bad_[index]; }
  std::uint64_t gradients_read() const { return read_; }
  // Where gradients lie that cannot be read, "cuda:0"; empty: all of the last look were.
  const std::string& unread() const { return unread_; }

  // After the optimizer has stepped: the index of a parameter that is not finite, or -1. All are read after the first two steps,
  // and a 64th of them after each later one.
  std::int64_t look_at_written();
  double largest_parameter() const;

  void keep_history(double loss);
  explain::StepHistory history() const;

  std::uint64_t steps = 0;   // that were judged
  bool has_begun = false;    // its first step has
  bool damaged = false;      // parameters are known not to be finite
  double largest_at_start = 0;

 private:
  struct Point {
    double loss, gradient, rate;
  };
  torch::optim::Optimizer* optimizer_;
  std::string class_name_;
  std::uint32_t ordinal_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::vector<std::pair<std::string, observe::WeakTensor>> buffers_;
  observe::BufferSnapshot buffer_copies_;
  std::vector<std::string> generators_;
  std::vector<bool> had_, bad_;
  std::vector<observe::GradMark> marks_;
  std::uint64_t read_ = 0;
  std::string unread_;
  std::size_t slice_ = 0;
  std::deque<Point> points_;
};

// The learning rate of the first group, and eps where its options have one; 0 where they have none.
double learning_rate(const torch::optim::Optimizer& optimizer) noexcept;
double eps_of(const torch::optim::Optimizer& optimizer) noexcept;

}  // namespace finitude::recorder
