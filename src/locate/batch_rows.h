// Whether dimension 0 of what a birth made can be that of the batch.
#pragma once

#include <cstddef>
#include <vector>

#include "locate/birth.h"
#include "record/trace.h"

namespace finitude::locate {

// No for what is computed of nothing but weights and numbers, and where a loader handed a batch over, of nothing but
// what did not come from there (tables, positions, counts); for what was transposed once on its way from the data, and
// for what was reduced over its first dimension. Yes does not say that it is the batch. Of the first `most` births, in
// their order.
std::vector<bool> rows_can_be_samples(const record::Trace& trace, const std::vector<Birth>& births, std::size_t most);

}  // namespace finitude::locate
