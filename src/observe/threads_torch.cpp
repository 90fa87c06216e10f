#include "observe/threads_torch.h"

#include <ATen/Parallel.h>

// What at::parallel_for compiles to here, left for run time: libtorch_cpu brings the library that has it, under a name
// that differs from one build of torch to the next. Naming one would bring a second OpenMP, with threads of its own.
asm(".weak GOMP_parallel\n.weak omp_get_num_threads\n.weak omp_get_thread_num");

namespace finitude::observe {
namespace {

void run(sense::Threads::Work work, void* context) noexcept {
  // One iteration for each thread: which part of the memory it reads is settled by the work itself.
  at::parallel_for(0, at::get_num_threads(), 1, [&](std::int64_t, std::int64_t) { work(context); });
}

}  // namespace

sense::Threads torch_threads() noexcept { return {run}; }

}  // namespace finitude::observe
