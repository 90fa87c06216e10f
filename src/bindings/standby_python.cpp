#include "bindings/standby_python.h"

#include <ATen/record_function.h>

#include <memory>
#include <string>

#include "gate/state_torch.h"
#include "rewind/snapshot_torch.h"
#include "rewind/window_start_torch.h"
#include "standby/first_step_torch.h"
#include "standby/last_step_torch.h"
#include "standby/tape_level_torch.h"
#include "standby/template_tape_torch.h"
#include "standby/verified_step_torch.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;

const Template* template_for(py::handle optimizer) {
  const OptimizerEntry* entry = find_entry(optimizer.ptr());
  return entry != nullptr ? template_of(entry->ordinal) : nullptr;
}

void define_template_tape(py::module_& m) {
  m.def("template_bind", [](py::handle optimizer) -> std::string {
    const OptimizerEntry* entry = find_entry(optimizer.ptr());
    return entry == nullptr ? "no step of it was recorded yet" : bind_template(*entry);
  });
  // Of the values that the template keeps: how many bytes.
  m.def("template_bytes", [](py::handle optimizer) {
    const Template* const found = template_for(optimizer);
    std::size_t size_bytes = 0;
    if (found == nullptr) return size_bytes;
    for (const capture::RawStorage& storage : found->raw.storages) size_bytes += storage.bytes.size();
    return size_bytes;
  });
  m.def("template_step", [](py::handle optimizer) -> py::object {  // None: there is no template of it
    const Template* const found = template_for(optimizer);
    return found == nullptr ? py::object(py::none()) : py::int_(found->step);
  });
  m.def("window_generators", []() -> std::unique_ptr<RngState> {
    OpenWindow window;
    return open_window(&window) ? std::make_unique<RngState>(*window.rng) : nullptr;
  });
}

}  // namespace

void define_standby(py::module_& m) {
  m.def("set_tape_level", &set_tape_level, py::arg("max_bytes"), py::arg("every") = 0, py::arg("verifies") = false);
  m.def("verified_counts", [] {
    const VerifiedCounts counts = verified_counts();
    py::dict d;
    d["steps"] = counts.steps;
    d["mismatches"] = counts.mismatches;
    d["not_played"] = counts.not_played;
    d["unjudged"] = counts.unjudged;
    d["optimizer_steps"] = counts.optimizer_steps;
    d["why_not"] = counts.why_not;
    d["nondeterministic"] = counts.nondeterministic;
    return d;
  });
  m.def("forget_verified_steps", &forget_verified_steps);
  m.def("tape_window_begins", &tape_window_begins);
  m.def("tape_level_lost", &tape_level_lost);
  m.def("tape_level_rests", &tape_level_rests);
  m.def("tape_generators", [] { return std::make_unique<RngState>(tape_generators()); });
  m.def("tape_level_lacks", [](py::handle optimizer) { return tape_level_lacks(optimizer.ptr()); });
  define_template_tape(m);
  m.def("trace_first_step", &trace_first_step);
  m.def("has_traced_first_step", &has_traced_first_step);
  m.def("first_step_over", &first_step_over);
  m.def("keep_last_step", &keep_last_step);
  m.def("keeps_last_step", &keeps_last_step);
  m.def("last_step_forget_gone", &last_step_forget_gone);
  m.def("last_step_name", [](py::handle tensor, const std::string& kind, const std::string& name) {
    last_step_name(tensor.ptr(), kind, name);
  });
  m.def("last_step_ops", &last_step_ops, py::arg("most"), py::arg("stacks") = false);
  m.def("take_ops", &take_ops);
  // Are operators of this thread reported to observers from here on? Returns whether they were.
  m.def("observe_operators", [](bool on) {
    const bool before = at::isRecordFunctionEnabled();
    at::enableRecordFunction(on);
    return before;
  });
}

}  // namespace finitude::bindings
