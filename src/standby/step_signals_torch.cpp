#include "standby/step_signals_torch.h"

#include <c10/core/ScalarType.h>

#include <cmath>
#include <unordered_map>
#include <vector>

#include "base/immortal.h"
#include "gate/gradients_torch.h"
#include "gate/state_torch.h"
#include "pyhost/object_python.h"
#include "signal/step_watch.h"

namespace finitude::bindings {
namespace {

struct Signals {
  bool on = true;
  std::unordered_map<std::uint32_t, signal::StepWatch> watches;  // by ordinal of the optimizer
  std::vector<float> gradients;                                  // of the step being looked at
};

base::Immortal<Signals> the_signals;

// The largest value of the narrowest dtype among the gradients of the step.
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

}  // namespace

bool watch_signals(const OptimizerEntry& entry, const record::StepRecord& step, bool has_marks) {
  Signals& s = *the_signals;
  if (!s.on) return false;
  auto found = s.watches.find(entry.ordinal);
  if (found == s.watches.end()) found = s.watches.try_emplace(entry.ordinal, signal::StepWatch(limit_of(entry))).first;
  s.gradients.clear();
  if (has_marks) {
    for (const GradMark& mark : entry.marks)
      s.gradients.push_back(mark.grad == nullptr ? -1.0f : static_cast<float>(mark.absmax));
  }
  return found->second.note({step.step, step.loss, step.grad_absmax, step.lr, record::loss_scale(step.flags)},
                            s.gradients);
}

bool warn(OptimizerEntry& entry) {
  const auto found = (*the_signals).watches.find(entry.ordinal);
  if (found == (*the_signals).watches.end()) return true;
  const Object text = Object::take(PyUnicode_FromString(signal::as_json(found->second.take()).c_str()));
  return text && call_cold("on_warning", entry.self, text.get());
}

void forget_signals_of(const OptimizerEntry& entry) { (*the_signals).watches.erase(entry.ordinal); }

void forget_signals() { (*the_signals).watches.clear(); }

void set_signals(bool on) {
  (*the_signals).on = on;
  forget_signals();
}

}  // namespace finitude::bindings
