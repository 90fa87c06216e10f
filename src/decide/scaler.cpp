#include "decide/scaler.h"

namespace finitude::decide {

ScalerSkips::Verdict ScalerSkips::on_skip(std::uint32_t optimizer, std::uint64_t step, std::optional<double> scale) {
  Row& row = rows_[optimizer];
  if (row.step != step) row = {};  // a step that was taken ends the row
  row.step = step;
  ++row.length;
  // Written so that a scale that is NaN alarms too.
  const bool scale_lost = scale && !(*scale >= 1.0);
  const bool alarm = row.length - row.reported > kNormalInARow || scale_lost;
  if (alarm) row.reported = row.length;  // the next alarm is another one
  return {alarm, row.length};
}

std::uint32_t ScalerSkips::in_a_row(std::uint32_t optimizer) const noexcept {
  const auto it = rows_.find(optimizer);
  return it == rows_.end() ? 0 : it->second.length;
}

}  // namespace finitude::decide
