#include "standby/step_store_torch.h"

#include <cstdlib>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/immortal.h"
#include "gate/gradient_norm_torch.h"
#include "gate/state_torch.h"
#include "store/writer_posix.h"

namespace finitude::bindings {
namespace {

struct Store {
  std::unique_ptr<store::Writer> writer;
  std::unordered_map<std::uint32_t, std::uint32_t> passes;  // over the weights, that were stored, by ordinal
  std::vector<float> gradients, weights, norms;             // of the step being stored
};

base::Immortal<Store> the_store;

// A program that ends by exit() need not come to the end of the watch.
void close_at_exit() {
  static const bool once = [] { return std::atexit([] { (void)close_store(); }) == 0; }();
  (void)once;
}

// A record says 0 where no loss was seen.
bool has_loss(const OptimizerEntry& entry, const record::StepRecord& step) {
  if (step.loss != 0) return true;
  for (const LossNote& note : live().losses)
    if (note.serial > entry.window_start) return true;
  return false;
}

}  // namespace

std::string open_store(const std::string& path, const std::map<std::string, std::string>& info) {
  (void)close_store();
  Store& s = *the_store;
  s.passes.clear();
  close_at_exit();
  return store::Writer::open(path, info, &s.writer).why();
}

void name_in_store(std::uint32_t ordinal, const std::string& class_name, const std::vector<std::string>& parameters,
                   const std::vector<std::string>& dtypes) {
  if ((*the_store).writer) (*the_store).writer->name(ordinal, {class_name, parameters, dtypes});
}

std::string close_store() {
  Store& s = *the_store;
  if (!s.writer) return {};
  if (!s.writer->is_of_this_process()) {
    let_go_of_store();
    return {};
  }
  const Status status = s.writer->close();
  s.writer.reset();
  return status.why();
}

void let_go_of_store() {
  if ((*the_store).writer) store::Writer::let_go(std::move((*the_store).writer));
}

void store_step(const OptimizerEntry& entry, const record::StepRecord& step, bool has_marks) noexcept try {
  Store& s = *the_store;
  if (!s.writer) return;
  store::StepRow row;
  row.step = step.step;
  row.optimizer = step.optimizer;
  row.time_ns = step.time_ns;
  if (has_loss(entry, step)) row.loss = step.loss;
  if (entry.clip_norm > 0) {
    row.gradient_norm = entry.clip_norm;
  } else if (has_marks) {
    if (const double norm = norm_of_marks(entry); norm >= 0) row.gradient_norm = norm;
  }
  row.gradient_absmax = step.grad_absmax;
  row.learning_rate = step.lr;
  if (const float scale = record::loss_scale(step.flags); scale > 0) row.loss_scale = static_cast<double>(scale);
  s.gradients.clear();
  s.norms.clear();
  if (has_marks) {
    for (const GradMark& mark : entry.marks) {
      const bool has_gradient = mark.grad != nullptr;
      s.gradients.push_back(has_gradient ? static_cast<float>(mark.absmax) : -1.0f);
      s.norms.push_back(has_gradient ? static_cast<float>(mark.norm) : -1.0f);
    }
  }
  row.gradients = s.gradients;
  row.norms = s.norms;
  s.weights.clear();
  std::uint32_t& passes = s.passes.try_emplace(entry.ordinal, entry.passes).first->second;
  if (passes != entry.passes) {
    passes = entry.passes;
    for (const ReadWeight& one : entry.weights) s.weights.push_back(one.absmax);
  }
  row.weights = s.weights;
  s.writer->push(row);
} catch (...) {  // no memory: the step is not stored
}

void forget_stored_passes_of(const OptimizerEntry& entry) { (*the_store).passes.erase(entry.ordinal); }

}  // namespace finitude::bindings
