#include "observe/threads_torch.h"

#include <ATen/Parallel.h>

namespace finitude::observe {
namespace {

void run(sense::Threads::Work work, void* context) noexcept {
  // One iteration for each thread: which part of the memory it reads is settled by the work itself.
  at::parallel_for(0, at::get_num_threads(), 1, [&](std::int64_t, std::int64_t) { work(context); });
}

}  // namespace

sense::Threads torch_threads() noexcept { return {run}; }

}  // namespace finitude::observe
