#include "gate/checked_row_torch.h"

#include <Python.h>

#include <algorithm>

#include "gate/second_run.h"
#include "gate/state_torch.h"

namespace finitude::bindings {
namespace {

// Looks in a step of a run that has not applied one yet: more than a script has parts of a loss.
constexpr std::uint32_t kLooksOfUnknownStep = 100;

struct Row {
  std::uint32_t limit = 0;
  std::uint32_t looks = 0;           // since the last step that was applied
  std::uint32_t most_in_a_step = 0;  // looks; 0: no step with one has been applied yet
  std::uint64_t bad = 0;             // values in a row
  std::uint64_t last = 0;            // sequence number of the node of the value looked at last: to look twice is one
  bool is_reported = false;
};

Row row;

std::uint64_t dropped_steps() { return row.bad / (row.most_in_a_step != 0 ? row.most_in_a_step : kLooksOfUnknownStep); }

}  // namespace

void watch_checked_rows(std::uint32_t limit) noexcept {
  row = Row();
  row.limit = limit;
}

// Not by its address, where the next loss may lie.
void note_look(const torch::autograd::Node& made_by) noexcept {
  if (made_by.sequence_nr() == row.last) return;
  row.last = made_by.sequence_nr();
  ++row.looks;
}

void note_bad_look() noexcept {
  if (live().closure_depth == 0) ++row.bad;
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
  return row.limit != 0 && row.bad >= row.limit && !row.is_reported && dropped_steps() >= row.limit &&
         !second_run_under_way() && !units_run_again();
}

bool report_checked_row() {
  row.is_reported = true;  // whatever comes of it: each further look would ask again
  const Object count = Object::take(PyLong_FromUnsignedLongLong(dropped_steps()));
  return count && call_cold("on_asked_row", count.get());
}

}  // namespace finitude::bindings
