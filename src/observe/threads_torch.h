// The threads of torch's own pool, lent to a large scan.
#pragma once

#include "finitude/scan.h"

namespace finitude::observe {

// As many as torch.get_num_threads() says for the calling thread; none beside it inside a parallel region.
// The workers need no GIL, so it may be held.
sense::Threads torch_threads() noexcept;

}  // namespace finitude::observe
