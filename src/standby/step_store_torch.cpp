#include "standby/step_store_torch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/immortal.h"
#include "gate/gradient_norm_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/state_torch.h"
#include "gate/verdict_torch.h"
#include "rewind/loader_datasets_python.h"
#include "rewind/loader_torch.h"
#include "rewind/window_start_torch.h"
#include "standby/step_reach_torch.h"
#include "store/batch_rows.h"
#include "store/writer_posix.h"

namespace finitude::bindings {
namespace {

struct Store {
  std::unique_ptr<store::Writer> writer;
  struct Last {
    std::uint32_t passes = 0;  // over the weights, that were stored
    double gradient_norm = std::numeric_limits<double>::quiet_NaN();
    bool has_rates = false;  // its groups have had different learning rates
  };
  std::unordered_map<std::uint32_t, Last> last;         // by ordinal
  std::vector<float> gradients, weights, norms, parts;  // of the step being stored
  std::array<double, store::kMostGroups - 1> rates{};   // of its parameter groups after the first
  std::vector<UsedBatch> used;                          // by it
  std::vector<std::byte> ids;                           // of one of them
  store::RowsWriter rows;                               // of all
  std::uint32_t named_datasets = 0;                     // whose names the writer has
  std::vector<bool> named_tensors;                      // by index
  bool keeps_rows = true;
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

// Of each backward that the gradients of this step are the sum of, the last of its losses.
void add_micro_batches(const OptimizerEntry& entry, store::StepRow* row) {
  const std::vector<LossNote>& notes = live().losses;
  if (entry.backwards < 2) return;
  std::uint32_t expected = entry.backwards;  // of this micro-batch and those after it a loss was taken
  for (auto note = notes.rbegin(); note != notes.rend() && expected > 0; ++note) {
    if (!in_window(entry, *note) || note->device.pending) continue;
    if (note->micro_batch + 1 > expected) continue;  // a further root of the same backward
    if (note->micro_batch + 1 < expected) break;
    --expected;
    row->loss_first = note->value;
    if (!(row->loss_min <= note->value)) row->loss_min = note->value;
    if (!(row->loss_max >= note->value)) row->loss_max = note->value;
  }
}

// From the step on in which they differ for the first time.
void add_rates(const OptimizerEntry& entry, Store::Last* last, store::StepRow* row) {
  Store& s = *the_store;
  // A device may give its verdict when the optimizer is gone.
  const std::size_t count = !is_alive(entry) ? 0 : ParamGroups(entry.self).more_lrs(s.rates.data(), s.rates.size());
  const auto differs = [&](double rate) { return rate != row->learning_rate; };
  last->has_rates = last->has_rates || std::any_of(s.rates.begin(), s.rates.begin() + count, differs);
  if (last->has_rates) row->more_rates = std::span(s.rates).first(count);
}

// What a pass over the parameters has found, in the order of store::kPartNames.
void add_weights(const OptimizerEntry& entry, store::StepRow* row) {
  Store& s = *the_store;
  for (const ReadWeight& one : entry.weights) s.weights.push_back(one.absmax);
  for (const ReadWeight& one : entry.weights) s.parts.push_back(one.update);
  for (const ReadWeight& one : entry.weights) s.parts.push_back(one.state_absmax);
  for (const ReadWeight& one : entry.weights) s.parts.push_back(one.small.zeros);
  for (const ReadWeight& one : entry.weights) s.parts.push_back(one.small.subnormals);
  row->weights = s.weights;
  row->parts = s.parts;
}
static_assert(store::kParts == 4);

// A whole number of Python's or numpy's. A tensor is none: of a GPU it would be waited for.
bool id_of(PyObject* object, std::int64_t* id) {
  Object number;
  if (!PyLong_Check(object)) {
    if (std::string_view(Py_TYPE(object)->tp_name).substr(0, 6) != "numpy.") return false;
    number = Object::take(PyNumber_Index(object));
    object = number.get();
  }
  if (object != nullptr) *id = PyLong_AsLongLong(object);
  const bool is_known = object != nullptr && (*id != -1 || PyErr_Occurred() == nullptr);
  if (!is_known) PyErr_Clear();
  return is_known;
}

// Rows that are no whole numbers are not stored: `count` is 0 then.
store::BatchRows rows_of(const UsedBatch& batch, std::vector<std::byte>* ids) {
  store::BatchRows rows{.dataset = batch.place.dataset, .epoch = batch.place.epoch, .worker = batch.place.worker};
  ids->clear();
  if (batch.indices == nullptr || rows.dataset == 0) return rows;
  const bool is_one = !PyTuple_Check(batch.indices);
  const Py_ssize_t count = is_one ? 1 : PyTuple_GET_SIZE(batch.indices);
  std::int64_t before = 0, id = 0;
  for (Py_ssize_t i = 0; i < count && i < static_cast<Py_ssize_t>(store::kMostIds); ++i, before = id) {
    if (!id_of(is_one ? batch.indices : PyTuple_GET_ITEM(batch.indices, i), &id)) return rows;
    store::append_id(id, before, ids);
  }
  rows.count = static_cast<std::uint32_t>(count);
  rows.ids = *ids;
  return rows;
}

void name_datasets(Store* s) {
  const std::vector<Dataset>& known = known_datasets();
  for (; s->named_datasets < known.size(); ++s->named_datasets) {
    const Dataset& one = known[s->named_datasets];
    s->writer->name(store::DatasetName{s->named_datasets + 1, one.class_name, one.length});
  }
}

// In the window of the optimizer that is open.
void add_batches(const OptimizerEntry& entry, store::StepRow* row) {
  Store& s = *the_store;
  if (!s.keeps_rows || loader_log().replaying()) return;
  loader_log().used_since(batches_before(entry), &s.used);
  s.rows.clear();
  bool is_any = false;
  for (const UsedBatch& batch : s.used) {
    const store::BatchRows rows = rows_of(batch, &s.ids);
    is_any = is_any || rows.count > 0;
    s.rows.add(rows);
  }
  if (!is_any) return;
  name_datasets(&s);
  row->batches = s.rows.bytes();
}

}  // namespace

std::string open_store(const std::string& path, const std::map<std::string, std::string>& info) {
  (void)close_store();
  Store& s = *the_store;
  s.last.clear();
  s.named_tensors.clear();
  s.named_datasets = 0;
  const auto rows = info.find("rows");
  s.keeps_rows = rows == info.end() || rows->second != "off";
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
  const bool is_bounded = has_marks && observe::any_bound(entry.marks);
  if (entry.clip_norm > 0) {
    row.gradient_norm = entry.clip_norm;
  } else if (has_marks && !is_bounded) {
    if (const double norm = norm_of_marks(entry); norm >= 0) row.gradient_norm = norm;
  }
  if (!is_bounded) {
    row.gradient_absmax = step.grad_absmax;
  } else if (std::ranges::none_of(entry.marks, &GradMark::is_unread)) {
    row.gradient_absmax = 0;
    for (const GradMark& mark : entry.marks) row.gradient_absmax = std::max(row.gradient_absmax, mark.absmax);
  }
  row.learning_rate = step.lr;
  if (const float scale = record::loss_scale(step.flags); scale > 0) row.loss_scale = static_cast<double>(scale);
  const observe::SoftmaxReach reach = reach_of_step();
  if (reach.logits > 0) row.logits_absmax = reach.logits;
  if (reach.attention > 0) row.attention_absmax = reach.attention;
  s.gradients.clear();
  s.norms.clear();
  if (has_marks) {
    for (const GradMark& mark : entry.marks) {
      const bool has_gradient = mark.grad != nullptr && !mark.is_unread();
      s.gradients.push_back(has_gradient ? static_cast<float>(mark.absmax) : -1.0f);
      s.norms.push_back(has_gradient ? static_cast<float>(mark.norm) : -1.0f);
    }
  }
  row.gradients = s.gradients;
  row.norms = s.norms;
  s.weights.clear();
  s.parts.clear();
  Store::Last& last = s.last.try_emplace(entry.ordinal, Store::Last{.passes = entry.passes}).first->second;
  last.gradient_norm = row.gradient_norm;
  if (last.passes != entry.passes) {
    last.passes = entry.passes;
    add_weights(entry, &row);
  }
  add_micro_batches(entry, &row);
  add_rates(entry, &last, &row);
  add_batches(entry, &row);
  s.writer->push(row);
} catch (...) {  // no memory: the step is not stored
}

void note_event_in_store(std::uint32_t ordinal, std::uint64_t step, const std::string& event) {
  Store& s = *the_store;
  if (!s.writer) return;
  store::StepRow row;
  row.step = step;
  row.optimizer = ordinal;
  row.is_applied = false;
  row.event = event == "alarm"   ? store::StepEvent::kAlarm
              : event == "spike" ? store::StepEvent::kSpike
                                 : store::StepEvent::kWarning;
  for (const auto& entry : live().optimizers) {
    if (row.event == store::StepEvent::kAlarm && entry->ordinal == ordinal && entry->step == step)
      add_batches(*entry, &row);
  }
  s.writer->push(row);
}

void forget_stored_passes_of(const OptimizerEntry& entry) { (*the_store).last.erase(entry.ordinal); }

double stored_gradient_norm(std::uint32_t ordinal) {
  const auto found = (*the_store).last.find(ordinal);
  return found != (*the_store).last.end() ? found->second.gradient_norm : std::numeric_limits<double>::quiet_NaN();
}

void store_tensor(std::uint32_t index, const std::string& name, std::uint64_t step, double absmax) {
  Store& s = *the_store;
  if (!s.writer || index >= store::kMostTensors) return;
  const std::uint32_t ordinal = store::kFirstTensor + index;
  if (index >= s.named_tensors.size()) s.named_tensors.resize(index + 1);
  if (!s.named_tensors[index]) s.writer->name(ordinal, {.class_name = name, .is_tensor = true});
  s.named_tensors[index] = true;
  store::StepRow row;
  row.step = step;
  row.optimizer = ordinal;
  row.time_ns =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
  row.gradient_absmax = absmax;
  s.writer->push(row);
}

}  // namespace finitude::bindings
