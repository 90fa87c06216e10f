#include "bindings/first_step_torch.h"

#include "bindings/live_torch.h"
#include "bindings/stack_torch.h"
#include "observe/tracer_torch.h"

namespace finitude::bindings {

void define_first_step(pybind11::module_& m) {
  // From here on until the next step is over, begun anew where that is on already; nothing where another trace is.
  m.def("trace_first_step", [] {
    constexpr observe::Tracer::Bound kFirstStep{50'000, std::uint64_t{16} << 30};  // what comes before a step may be a long evaluation
    observe::Tracer& tracer = observe::Tracer::get();
    if (tracer.on() && !live().trace_first) return;
    tracer.stop();
    tracer.clear();
    tracer.start(&places(), false, kFirstStep);
    live().trace_first = true;
  });
  m.def("has_traced_first_step", [] { return live().trace_first && observe::Tracer::get().on() && observe::Tracer::get().is_whole(); });
}

}  // namespace finitude::bindings
