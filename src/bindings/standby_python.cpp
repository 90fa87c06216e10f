#include "bindings/standby_python.h"

#include <ATen/record_function.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "gate/state_torch.h"
#include "observe/value_keeper_torch.h"
#include "record/trace_words.h"
#include "rewind/snapshot_torch.h"
#include "rewind/window_start_torch.h"
#include "show/op_rows.h"
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

// The operations of a step that is dumped. Python chooses among them by their kind: there are few, and thousands of
// operations.
class DumpedStep {
 public:
  explicit DumpedStep(std::shared_ptr<const record::Trace> trace) : trace_(std::move(trace)) {
    kept_ = observe::ValueKeeper::get().stop(&beyond_);
    for (record::OpId id = 0; id < trace_->ops.size(); ++id) {
      if (!trace_->ops[id].is_node) ops_.push_back(id);
    }
  }

  // ([{op, phase, module, micro_batch}], for each operation the index of its kind)
  py::tuple kinds() const {
    std::map<std::tuple<std::string_view, record::Phase, std::string_view, std::uint32_t>, std::size_t> known;
    py::list kinds, of_ops;
    for (const record::OpId id : ops_) {
      const record::Op& op = trace_->ops[id];
      const bool has_place = op.stack < trace_->stacks.size() && !trace_->stacks[op.stack].frames.empty();
      const std::string_view module = has_place ? std::string_view(trace_->stacks[op.stack].module) : "";
      const auto [kind, is_new] = known.try_emplace({op.name, op.phase, module, op.micro_batch}, known.size());
      if (is_new) {
        py::dict d;
        d["op"] = text(op.name);
        d["phase"] = text(record::kPhaseWords[static_cast<std::size_t>(op.phase)]);
        d["module"] = text(module);
        d["micro_batch"] = op.micro_batch;
        kinds.append(d);
      }
      of_ops.append(kind->second);
    }
    return py::make_tuple(kinds, of_ops);
  }

  // (JSON array, how many operations are in it, [(name, dtype, shape, bytes)] of the file of values). chosen: indices,
  // in order.
  py::tuple json(const std::vector<std::size_t>& chosen, const std::pair<bool, bool>& sides, bool stacks,
                 std::size_t most_ops, std::size_t most_bytes) const {
    std::vector<record::OpId> ops;
    for (const std::size_t i : chosen) ops.push_back(ops_.at(i));
    const show::OpRows rows =
        show::op_rows(*trace_, ops, {sides.first, sides.second, stacks, most_ops, most_bytes}, kept_);
    py::list values;
    for (const show::NamedValue& one : rows.values) values.append(tuple_of(one));
    return py::make_tuple(py::bytes(rows.text), rows.ops, values);
  }

  std::size_t without_values() const { return beyond_; }  // tensors, for which there was no room

  bool is_truncated() const { return trace_->truncated; }

 private:
  static py::tuple tuple_of(const show::NamedValue& one) {
    PyObject* const dtype =
        reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(one.value->scalar_type)));
    return py::make_tuple(text(one.name), py::reinterpret_borrow<py::object>(dtype), one.use->shape,
                          py::bytes(*one.value->bytes));
  }

  // Invalid UTF-8 is replaced: a name may be of any bytes.
  static py::str text(std::string_view s) {
    return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace"));
  }

  std::shared_ptr<const record::Trace> trace_;
  std::vector<record::OpId> ops_;  // without nodes of the backward
  record::KeptCalls kept_;
  std::size_t beyond_ = 0;
};

void define_dumped_step(py::module_& m) {
  py::class_<DumpedStep>(m, "DumpedStep")
      .def("kinds", &DumpedStep::kinds)
      .def("json", &DumpedStep::json)
      .def("without_values", &DumpedStep::without_values)
      .def("is_truncated", &DumpedStep::is_truncated);
  // Until the step is taken: checksums of what operators read and give, and values of at most so many bytes.
  m.def("keep_values", [](std::vector<std::string> ops, std::vector<std::string> modules,
                          const std::vector<std::string>& phases, std::size_t most_bytes) {
    observe::KeptOperators kept{std::move(ops), std::move(modules), {}, most_bytes};
    for (const std::string& phase : phases) {
      const auto word = std::ranges::find(record::kPhaseWords, phase);
      kept.phases.push_back(static_cast<record::Phase>(word - record::kPhaseWords.begin()));
    }
    observe::ValueKeeper::get().start(std::move(kept));
  });
  m.def("drop_values", [] {
    std::size_t beyond = 0;
    observe::ValueKeeper::get().stop(&beyond);
  });
  m.def("last_step", [] { return DumpedStep(last_step_trace()); });
  m.def("take_step", [] { return DumpedStep(take_trace()); });
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
  m.def("last_step_ops", &last_step_ops);
  define_dumped_step(m);
  // Are operators of this thread reported to observers from here on? Returns whether they were.
  m.def("observe_operators", [](bool on) {
    const bool before = at::isRecordFunctionEnabled();
    at::enableRecordFunction(on);
    return before;
  });
}

}  // namespace finitude::bindings
