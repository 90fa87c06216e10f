#include "recorder/watched_torch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>

#include <algorithm>
#include <limits>
#include <typeinfo>

#include "observe/generator_state_torch.h"
#include "observe/tensor_view_torch.h"

namespace finitude::recorder {
namespace {

constexpr std::size_t kHistory = 32, kKept = 4096;  // steps: shown, and looked at for an onset
constexpr std::size_t kRotation = 64;               // steps within which every parameter is read once

std::string short_class(const torch::optim::Optimizer& optimizer) {
  std::string name = c10::demangle(typeid(optimizer).name());
  if (name.find('<') == std::string::npos) {
    if (const std::size_t colon = name.rfind("::"); colon != std::string::npos) name = name.substr(colon + 2);
  }
  return name;
}

}  // namespace

bool is_finite(const at::Tensor& tensor) noexcept {
  observe::TensorView v;
  return !tensor.defined() || !observe::view_of(*tensor.unsafeGetTensorImpl(), &v) || !observe::quick(v).bad;
}

const at::Tensor* gradient_of(const at::Tensor& parameter) {
  if (!parameter.defined()) return nullptr;
  const auto* meta = torch::autograd::impl::get_autograd_meta(parameter);
  return meta != nullptr && meta->grad_.defined() ? &meta->grad_ : nullptr;
}

Generators::Generators() : all_{at::detail::getDefaultCPUGenerator()} {}

void Generators::add(const at::Generator& generator) {
  if (std::find(all_.begin(), all_.end(), generator) == all_.end()) all_.push_back(generator);
}

void Generators::take(std::vector<std::string>* states) const {
  states->resize(all_.size());
  for (std::size_t i = 0; i < all_.size(); ++i) (*states)[i] = observe::generator_state(all_[i]);
}

void Generators::put_back(const std::vector<std::string>& states) const noexcept {
  for (std::size_t i = 0; i < states.size() && i < all_.size(); ++i) {
    try {
      observe::set_generator_state(all_[i], states[i]);
    } catch (...) {
    }
  }
}

Watched::Watched(torch::optim::Optimizer& optimizer, std::uint32_t ordinal)
    : optimizer_(&optimizer), class_name_(short_class(optimizer)), ordinal_(ordinal) {}

void Watched::name(const NamedTensors& parameters) {
  for (const auto& [name, tensor] : parameters) {
    if (tensor.defined()) names_.insert_or_assign(tensor.unsafeGetTensorImpl(), name);
  }
}

std::string Watched::name_of(std::size_t index, const at::Tensor& parameter) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found != names_.end() ? found->second : "parameter " + std::to_string(index);
}

void Watched::begin_step(const Generators& generators) {
  generators.take(&generators_);
  had_.clear();
  for_each([&](std::size_t, const at::Tensor& p) {
    Had& had = had_.emplace_back();
    const at::Tensor* gradient = gradient_of(p);
    if (gradient == nullptr) return;
    had.gradient = gradient->unsafeGetTensorImpl();
    had.version = observe::version_of(*had.gradient);
    if (had_.size() > marks_.size()) return;
    const observe::GradMark& last = marks_[had_.size() - 1];
    if (last.grad != had.gradient || last.version != had.version) return;
    had.clean = last.state == observe::GradMark::kClean;
    had.bad = last.state > observe::GradMark::kClean;
    if (had.bad) had.held.emplace(gradient->getIntrusivePtr());
  });
  bad_.assign(had_.size(), false);
  marks_.assign(had_.size(), {});
  read_ = 0;
}

bool Watched::began_bad(std::size_t index, const at::Tensor& parameter) const {
  const at::Tensor* gradient = gradient_of(parameter);
  if (gradient == nullptr || index >= had_.size() || had_[index].clean) return false;
  const Had& had = had_[index];
  return had.gradient == gradient->unsafeGetTensorImpl() && (!had.bad || !had.held->expired());
}

bool Watched::left_bad(std::size_t index, const at::Tensor& parameter) const {
  if (!began_bad(index, parameter) || !had_[index].bad) return false;
  return had_[index].version == observe::version_of(*gradient_of(parameter)->unsafeGetTensorImpl());
}

void Watched::look_at_gradients(bool written_only) {
  unread_.clear();
  for_each([&](std::size_t index, const at::Tensor& p) {
    if (index >= marks_.size()) {  // a group was added within the step
      marks_.resize(index + 1);
      bad_.resize(index + 1);
    }
    const at::Tensor* gradient = gradient_of(p);
    marks_[index] = {};
    if (gradient == nullptr || (written_only && left_bad(index, p))) return;
    observe::TensorView v;
    if (!gradient->device().is_cpu() ||
        (!gradient->is_sparse() && !observe::view_of(*gradient->unsafeGetTensorImpl(), &v))) {
      if (unread_.empty()) unread_ = gradient->device().str();
      return;
    }
    marks_[index] = observe::judge_gradient(*gradient);
    ++read_;
    if (marks_[index].state > observe::GradMark::kClean) bad_[index] = true;
  });
}

std::int64_t Watched::look_at_written() {
  const bool all = steps <= 2;
  std::int64_t bad = -1;
  const std::size_t slice = slice_++ % kRotation;
  for_each([&](std::size_t index, const at::Tensor& p) {
    if (index >= seen_.size()) seen_.resize(index + 1);
    if (p.defined()) seen_[index].version = observe::version_of(*p.unsafeGetTensorImpl());
    if (bad >= 0 || (!all && index % kRotation != slice)) return;
    if (!p.requires_grad() && gradient_of(p) == nullptr) return;  // frozen: no step writes it, whatever it holds
    if (is_finite(p))
      seen_[index].finite_after = steps;
    else
      bad = static_cast<std::int64_t>(index);
  });
  return bad;
}

void Watched::found_finite_at_start() {
  for_each([&](std::size_t index, const at::Tensor& p) {
    seen_.push_back({is_finite(p) ? 0 : kNever, p.defined() ? observe::version_of(*p.unsafeGetTensorImpl()) : 0});
  });
}

std::optional<std::uint64_t> Watched::steps_when_finite(std::size_t index) const {
  if (index >= seen_.size() || seen_[index].finite_after == kNever) return std::nullopt;
  return seen_[index].finite_after;
}

bool Watched::is_written_since_step(std::size_t index, const at::Tensor& parameter) const {
  return seen_[index].version != observe::version_of(*parameter.unsafeGetTensorImpl());
}

double Watched::largest_parameter() const {
  double largest = 0;
  for_each([&](std::size_t, const at::Tensor& p) {
    observe::TensorView v;
    if (p.defined() && observe::view_of(*p.unsafeGetTensorImpl(), &v))
      largest = std::max(largest, observe::full(v).absmax);
  });
  return largest;
}

std::vector<signal::Warning> Watched::keep_history(std::uint64_t step, double loss) {
  double gradient = 0;
  largest_.clear();
  for (const auto& mark : marks_) {
    gradient = std::max(gradient, mark.absmax);
    largest_.push_back(mark.grad == nullptr ? -1.0f : static_cast<float>(mark.absmax));
  }
  if (points_.size() == kKept) points_.pop_front();
  const double rate = learning_rate(*optimizer_);
  points_.push_back({step, loss, gradient, rate});
  if (!watch_) {
    double limit = std::numeric_limits<double>::max();
    for_each([&](std::size_t, const at::Tensor& p) {
      if (p.scalar_type() == at::kHalf) limit = std::min(limit, 65504.0);
      if (p.scalar_type() == at::kFloat || p.scalar_type() == at::kBFloat16)
        limit = std::min(limit, static_cast<double>(std::numeric_limits<float>::max()));
    });
    watch_.emplace(limit);
  }
  if (!watch_->note({.step = step, .loss = loss, .grad_absmax = gradient, .lr = rate}, largest_)) return {};
  return watch_->take();
}

void Watched::count_zero_gradients(bool is_loss_zero) {
  const auto is_zero = [](const observe::GradMark& mark) {
    return mark.grad == nullptr || (mark.state == observe::GradMark::kClean && mark.absmax == 0);
  };
  const bool has_any = std::ranges::any_of(marks_, [](const auto& mark) { return mark.grad != nullptr; });
  const bool are_zero = has_any && unread_.empty() && std::ranges::all_of(marks_, is_zero);
  had_gradient_ |= has_any && !are_zero;
  zero_steps_ = are_zero && had_gradient_ && !is_loss_zero ? zero_steps_ + 1 : 0;
}

std::vector<std::string> Watched::names() const {
  std::vector<std::string> all;
  for_each([&](std::size_t index, const at::Tensor& p) { all.push_back(name_of(index, p)); });
  return all;
}

explain::StepHistory Watched::history() const {
  explain::StepHistory history;
  const std::size_t shown = std::min(kHistory, points_.size());
  for (auto point = points_.end() - static_cast<std::ptrdiff_t>(shown); point != points_.end(); ++point) {
    history.loss.push_back(point->loss);
    history.grad_absmax.push_back(point->gradient);
    history.learning_rate.push_back(point->rate);
  }
  if (largest_at_start > 0) history.param_absmax = {largest_at_start, largest_parameter()};
  history.lr_now = learning_rate(*optimizer_);
  for_each([&](std::size_t, const at::Tensor& p) {
    history.half_parameters |= p.scalar_type() == at::kHalf || p.scalar_type() == at::kBFloat16;
  });
  history.optimizer = class_name_;
  history.optimizer_eps = eps_of(*optimizer_);
  return history;
}

namespace {

const torch::optim::OptimizerOptions* options_of(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return !groups.empty() && groups.front().has_options() ? &groups.front().options() : &optimizer.defaults();
}

template <typename Options>
bool take_eps(const torch::optim::OptimizerOptions* options, double* eps) {
  const auto* known = dynamic_cast<const Options*>(options);
  if (known != nullptr) *eps = known->eps();
  return known != nullptr;
}

}  // namespace

double learning_rate(const torch::optim::Optimizer& optimizer) noexcept try {
  return options_of(optimizer)->get_lr();
} catch (...) {
  return 0;  // a class of the program's own need not have one
}

double eps_of(const torch::optim::Optimizer& optimizer) noexcept try {
  const auto* options = options_of(optimizer);
  double eps = 0;
  take_eps<torch::optim::AdamOptions>(options, &eps) || take_eps<torch::optim::AdamWOptions>(options, &eps) ||
      take_eps<torch::optim::RMSpropOptions>(options, &eps) || take_eps<torch::optim::AdagradOptions>(options, &eps);
  return eps;
} catch (...) {
  return 0;
}

}  // namespace finitude::recorder
