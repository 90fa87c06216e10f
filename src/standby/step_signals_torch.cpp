#include "standby/step_signals_torch.h"

#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/immortal.h"
#include "gate/gradient_norm_torch.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/state_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/object_python.h"
#include "signal/depth_watch.h"
#include "signal/drop_watch.h"
#include "signal/headroom_watch.h"
#include "signal/reach_watch.h"
#include "signal/step_watch.h"
#include "signal/weight_watch.h"
#include "standby/computed_dtype_torch.h"
#include "standby/step_reach_torch.h"

namespace finitude::bindings {
namespace {

// What the parameters of an optimizer are, in order.
struct Shapes {
  // The largest finite number of its gradient's dtype, or of the one that it is computed in; 0: it had none so far.
  std::vector<double> limits;
  std::vector<std::uint8_t> is_matrix;    // it has two dimensions or more
  std::vector<std::uint8_t> is_narrowed;  // it is computed in float16, and no GradScaler keeps it in range
  double narrowest = std::numeric_limits<double>::max();  // of the limits that are known
  std::uint64_t casts = 0;                                // casts_seen() of the limits
};

struct Watches {
  signal::StepWatch steps;
  signal::WeightWatch weights;
  signal::HeadroomWatch headroom{};
  signal::DepthWatch depth{};
  signal::DropWatch drops{};
  signal::ReachWatch logits{signal::What::kLogits}, attention{signal::What::kAttention};
  Shapes shapes{};
  std::vector<float> last_read{};  // gradients before they were clipped, of the last step in which they were read
  bool is_bounded = false;   // the last step had gradients of which only the norm of all was known, or read before
  std::uint32_t passes = 0;  // over the weights, that have been looked at
  std::uint64_t handled = 0, skips = 0;   // of the counters of the process, at the last step
  std::vector<signal::Warning> others{};  // than those of `steps`
};

struct Signals {
  bool on = true;
  double norm_limit = 0;
  std::unordered_map<std::uint32_t, Watches> watches;  // by ordinal of the optimizer
  std::vector<float> gradients;                        // of the step being looked at
  std::vector<signal::Weight> weights;
};

base::Immortal<Signals> the_signals;

// The largest value of the narrowest dtype among the gradients of the step. PyTorch's gradients have the dtype of their
// parameters.
double limit_of(const OptimizerEntry& entry) {
  double limit = std::numeric_limits<double>::max();
  for (const GradMark& mark : entry.marks) {
    if (mark.grad == nullptr) continue;
    const at::ScalarType type = mark.grad->dtype().toScalarType();
    if (type == at::ScalarType::Half) limit = std::min(limit, 65504.0);
    if (type == at::ScalarType::Float || type == at::ScalarType::BFloat16)
      limit = std::min(limit, static_cast<double>(std::numeric_limits<float>::max()));
  }
  return limit;
}

double limit_of(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Half:
    case at::ScalarType::ComplexHalf:
      return 65504.0;
    case at::ScalarType::BFloat16:
      return 3.3895313892515355e38;
    case at::ScalarType::Float:
    case at::ScalarType::ComplexFloat:
      return static_cast<double>(std::numeric_limits<float>::max());
    default:
      return at::isFloatingType(type) || at::isComplexType(type) ? std::numeric_limits<double>::max() : 0;
  }
}

// Looked up when the number of parameters changes; the dtype where a gradient comes for the first time. GIL held.
void look_at_shapes(const OptimizerEntry& entry, bool has_scaler, Shapes* shapes) {
  if (!is_alive(entry)) return;  // a device may give its verdict later
  const std::size_t count = entry.marks.size();
  if (shapes->limits.size() != count || shapes->casts != casts_seen()) {
    *shapes = {std::vector<double>(count, 0.0), std::vector<std::uint8_t>(count, 0),
               std::vector<std::uint8_t>(count, 0), std::numeric_limits<double>::max(), casts_seen()};
    for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
      if (index >= count || !is_tensor_object(p)) return;
      const at::Tensor& parameter = THPVariable_Unpack(p);
      shapes->is_matrix[index] = parameter.dim() >= 2;
      shapes->is_narrowed[index] = !has_scaler && is_computed_in_half(*parameter.unsafeGetTensorImpl());
    });
    PyErr_Clear();
  }
  for (std::size_t i = 0; i < count; ++i) {
    const c10::TensorImpl* grad = entry.marks[i].grad;
    if (grad == nullptr || shapes->limits[i] != 0) continue;
    shapes->limits[i] =
        shapes->is_narrowed[i] ? limit_of(at::ScalarType::Half) : limit_of(grad->dtype().toScalarType());
    if (shapes->limits[i] > 0) shapes->narrowest = std::min(shapes->narrowest, shapes->limits[i]);
  }
}

// The 2-norm of all gradients, as far as it decides whether that is above the limit: clipping has computed it; else no
// norm is larger than the largest element times the root of their number, and the gradients are read only where that
// says nothing. Where gradients were clipped by another norm they are read as they are now.
double norm_of(const OptimizerEntry& entry, double grad_absmax, double limit) {
  if (entry.clip_norm > 0) return entry.clip_norm;
  if (limit <= 0 || grad_absmax * std::sqrt(static_cast<double>(entry.elements)) <= limit) return 0;
  if (!observe::any_bound(entry.marks))
    if (const double norm = norm_of_marks(entry); norm >= 0) return norm;
  double squares = 0;
  for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) {
    const at::Tensor* grad = gradient_of(p);
    observe::TensorView v;
    if (grad != nullptr && observe::view_of(*grad->unsafeGetTensorImpl(), &v)) squares += observe::full(v).sum_sq;
  });
  PyErr_Clear();
  return std::sqrt(squares);
}

// Clipped gradients are read in some steps only. In between what the last one showed says which layer the largest is
// in. A zero says nothing of the steps that were not read, so that none of theirs is counted.
void keep_last_read(const OptimizerEntry& entry, Watches* watches) {
  std::vector<float>& gradients = (*the_signals).gradients;
  watches->is_bounded = observe::any_bound(entry.marks);
  if (!watches->is_bounded) return;
  watches->last_read.resize(gradients.size(), -1.0f);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    float& last = watches->last_read[i];
    if (entry.marks[i].is_unread())
      gradients[i] = last;
    else if (entry.marks[i].bound > 0)
      last = gradients[i] = gradients[i] == 0 ? -1.0f : gradients[i];
  }
}

bool look_at_weights(const OptimizerEntry& entry, const record::StepRecord& step, Watches* watches) {
  if (entry.passes == watches->passes) return false;
  watches->passes = entry.passes;
  std::vector<signal::Weight>& weights = (*the_signals).weights;
  weights.clear();
  for (const ReadWeight& one : entry.weights) weights.push_back({one.absmax, one.has_changed || step.grad_absmax == 0});
  for (signal::Warning& one : watches->weights.note(step.step, step.lr, weights))
    watches->others.push_back(std::move(one));
  return !watches->others.empty();
}

bool look_at_softmax(const record::StepRecord& step, Watches* watches) {
  const observe::SoftmaxReach reach = reach_of_step();
  if (const auto one = watches->logits.note(step.step, step.lr, reach.logits)) watches->others.push_back(*one);
  if (const auto one = watches->attention.note(step.step, step.lr, reach.attention)) watches->others.push_back(*one);
  return !watches->others.empty();
}

// Of steps that the program drops before backward, the counter of the process has those that Python was asked about.
bool look_at_drops(const OptimizerEntry& entry, const record::StepRecord& step, Watches* watches) {
  const std::uint64_t handled = live().counters.handled_by_script, skips = live().counters.scaler_skips;
  const std::uint64_t counted = handled - std::exchange(watches->handled, handled);
  const std::uint64_t dropped = std::max<std::uint64_t>({counted, entry.dropped, entry.laundered ? 1u : 0u});
  const std::uint64_t by_scaler = skips - std::exchange(watches->skips, skips);
  if (const auto one = watches->drops.note(step.step, step.lr, dropped, by_scaler)) watches->others.push_back(*one);
  return !watches->others.empty();
}

bool look_at_parameters(const OptimizerEntry& entry, const record::StepRecord& step, std::span<const float> gradients,
                        Watches* watches) {
  const auto is_unread = [](const GradMark& mark) { return mark.grad != nullptr && !(mark.norm >= 0); };
  if (gradients.empty() || std::ranges::any_of(entry.marks, is_unread)) return false;
  look_at_shapes(entry, record::loss_scale(step.flags) > 0, &watches->shapes);
  const Shapes& shapes = watches->shapes;
  for (signal::Warning& one :
       watches->headroom.note(step.step, step.lr, step.grad_absmax, shapes.narrowest, gradients, shapes.limits))
    watches->others.push_back(std::move(one));
  for (signal::Warning& one : watches->depth.note(step.step, step.lr, gradients, shapes.is_matrix))
    watches->others.push_back(std::move(one));
  return !watches->others.empty();
}

}  // namespace

bool watch_signals(const OptimizerEntry& entry, const record::StepRecord& step, bool has_marks) {
  Signals& s = *the_signals;
  if (!s.on) return false;
  auto found = s.watches.find(entry.ordinal);
  if (found == s.watches.end()) {
    const double limit = limit_of(entry);
    found = s.watches
                .try_emplace(entry.ordinal, Watches{.steps = signal::StepWatch(limit, s.norm_limit),
                                                    .weights = signal::WeightWatch(limit),
                                                    .passes = entry.passes,
                                                    .handled = live().counters.handled_by_script,
                                                    .skips = live().counters.scaler_skips})
                .first;
  }
  s.gradients.clear();
  if (has_marks) {
    for (const GradMark& mark : entry.marks)
      s.gradients.push_back(mark.grad == nullptr ? -1.0f : static_cast<float>(mark.absmax));
    keep_last_read(entry, &found->second);
  }
  const bool weights_have_news = look_at_weights(entry, step, &found->second);
  const bool softmax_has_news = look_at_softmax(step, &found->second);
  const bool drops_have_news = look_at_drops(entry, step, &found->second);
  const bool parameters_have_news = look_at_parameters(entry, step, s.gradients, &found->second);
  // What grows and vanishes is judged without the loss scale, which a scaler changes.
  const double unscaled = 1 / record::gradient_scale(step);
  if (unscaled != 1)
    for (float& gradient : s.gradients)
      if (gradient > 0) gradient = static_cast<float>(gradient * unscaled);
  const bool steps_have_news = found->second.steps.note(
      {step.step, step.loss, step.grad_absmax * unscaled, step.lr, record::loss_scale(step.flags),
       norm_of(entry, step.grad_absmax, s.norm_limit), entry.clip_max},
      s.gradients);
  return weights_have_news || softmax_has_news || drops_have_news || parameters_have_news || steps_have_news;
}

bool warn(OptimizerEntry& entry) {
  const auto found = (*the_signals).watches.find(entry.ordinal);
  if (found == (*the_signals).watches.end()) return true;
  std::vector<signal::Warning> all = found->second.steps.take();
  const std::uint32_t alone = found->second.weights.growing_alone();
  for (signal::Warning& one : all) {
    if (one.what != signal::What::kGrowth || alone == signal::kNoParameter) continue;
    one.parameter = alone;
    one.is_widespread = false;
    one.is_by_weights = true;
  }
  for (signal::Warning& one : std::exchange(found->second.others, {})) all.push_back(std::move(one));
  const Object text = Object::take(PyUnicode_FromString(signal::as_json(all).c_str()));
  return text && call_cold("on_warning", entry.self, text.get());
}

StepFigures figures_of(std::uint32_t ordinal, double grad_absmax) {
  StepFigures figures{std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  const auto found = (*the_signals).watches.find(ordinal);
  if (found == (*the_signals).watches.end()) return figures;
  const double narrowest = found->second.shapes.narrowest;
  if (!found->second.is_bounded && grad_absmax > 0 && narrowest < std::numeric_limits<double>::max())
    figures.headroom_bits = std::log2(narrowest / grad_absmax);
  figures.gradient_growth = found->second.steps.gradient_growth(grad_absmax);
  return figures;
}

void forget_signals_of(const OptimizerEntry& entry) {
  (*the_signals).watches.erase(entry.ordinal);
  forget_reach_of(entry);
}

void forget_signals() {
  (*the_signals).watches.clear();
  set_reach_looks((*the_signals).on);
}

void set_signals(bool on, double norm_limit) {
  (*the_signals).on = on;
  (*the_signals).norm_limit = norm_limit;
  set_reach_looks(on);
  forget_signals();
}

}  // namespace finitude::bindings
