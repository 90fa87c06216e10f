// The contenders.
#pragma once

namespace finitude::bench {

void add_plain_reads();
void add_scans();
void add_torch();  // only with FINITUDE_TORCH

}  // namespace finitude::bench
