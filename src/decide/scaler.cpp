#include "decide/scaler.h"

namespace finitude::decide {

ScalerSkips::Verdict ScalerSkips::on_skip(std::uint32_t optimizer, std::uint64_t step, std::optional<double> scale) {
  Row& row = rows_[optimizer];
  if (row.step != step) row.length = 0;  // a step that was taken ends the row
  row.step = step;
  ++row.length;
  // Written so that a scale that is NaN alarms too.
  const bool scale_lost = scale && !(*scale >= 1.0);
  const Verdict verdict{row.length > kNormalInARow || scale_lost, row.length};
  if (verdict.alarm) row.length = 0;  // the next alarm is another one
  return verdict;
}

std::uint32_t ScalerSkips::in_a_row(std::uint32_t optimizer) const noexcept {
  const auto it = rows_.find(optimizer);
  return it == rows_.end() ? 0 : it->second.length;
}

}  // namespace finitude::decide
