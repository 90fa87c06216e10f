#include "standby/first_step_torch.h"

#include <utility>

#include "gate/state_torch.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/places_torch.h"

namespace finitude::bindings {

// Recorder before tracer, as the recorder asks the tracer for the operator that has begun. Called at each end of a
// traced window; all but the first call return at once.
void first_step_over() {
  if (!std::exchange(live().trace_first, false)) return;
  observe::TapeRecorder::get().stop();
  observe::TapeRecorder::get().clear();
  observe::Tracer::get().stop();
  observe::Tracer::get().clear();
}

bool trace_first_step() {
  constexpr observe::Tracer::Bound kFirstStep{
      50'000, std::uint64_t{16} << 30};  // what comes before a step may be a long evaluation
  first_step_over();
  observe::Tracer& tracer = observe::Tracer::get();
  // The tracer is one for the process. Another user's trace must not be cleared.
  if (tracer.on()) return false;
  tracer.clear();
  tracer.start(&places(), false, kFirstStep);
  live().trace_first = true;
  return true;
}

bool has_traced_first_step() {
  return live().trace_first && observe::Tracer::get().on() && observe::Tracer::get().is_whole();
}

}  // namespace finitude::bindings
