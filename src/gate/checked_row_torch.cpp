#include "gate/checked_row_torch.h"

#include <Python.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "gate/second_run.h"
#include "gate/state_torch.h"

namespace finitude::bindings {
namespace {

// Looks in a step of a run that has not applied one yet: more than a script has parts of a loss.
constexpr std::uint64_t kLooksOfUnknownStep = 100;
// So many bad values are a row whatever a step looks at: each costs a walk of its graph, and 4096 of them are looked
// at.
constexpr std::uint64_t kMostNeeded = 1000;

struct Row {
  std::uint32_t limit = 0;
  std::uint32_t looks = 0;           // since the last step that was applied
  std::uint32_t most_in_a_step = 0;  // looks; 0: no step with one has been applied yet
  std::uint64_t bad = 0;             // values in a row
  std::uint64_t last = 0;            // sequence number of the node of the value looked at last: to look twice is one
  bool is_reported = false;
};

Row row;

// Where no step was applied each value counts as one.
std::uint64_t dropped_steps() { return row.bad / std::max(row.most_in_a_step, 1u); }

std::uint64_t needed() {
  const std::uint64_t in_a_step = row.most_in_a_step != 0 ? row.most_in_a_step : kLooksOfUnknownStep;
  return std::max<std::uint64_t>(row.limit, std::min(row.limit * in_a_step, kMostNeeded));
}

}  // namespace

void watch_checked_rows(std::uint32_t limit) noexcept {
  row = Row();
  row.limit = limit;
}

// Known by the node that made it, since the next loss may lie at the same address. grad_fn() would build the node of a
// view again, and throws where the view's base was written.
void note_look(const at::Tensor& value) noexcept {
  const std::uint64_t node = torch::autograd::impl::get_autograd_meta(value)->grad_fn_->sequence_nr();
  if (node == row.last || is_of_second_run()) return;
  row.last = node;
  ++row.looks;
}

void note_bad_look() noexcept {
  if (live().closure_depth == 0 && !is_of_second_run()) ++row.bad;
}

void end_checked_row() noexcept {
  row.bad = 0;
  row.is_reported = false;
}

void note_step_of_looks() noexcept {
  end_checked_row();
  row.most_in_a_step = std::max(row.most_in_a_step, row.looks);
  row.looks = 0;
}

bool is_checked_row_long() noexcept {
  return row.limit != 0 && row.bad >= row.limit && !row.is_reported && row.bad >= needed() && !is_of_second_run();
}

bool report_checked_row() {
  row.is_reported = true;  // whatever comes of it: each further look would ask again
  const Object count = Object::take(PyLong_FromUnsignedLongLong(dropped_steps()));
  return count && call_cold("on_asked_row", count.get(), Py_True);
}

}  // namespace finitude::bindings
