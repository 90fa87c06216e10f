// finitude._native: what the Python package may call.
#include <torch/csrc/Generator.h>
#include <torch/extension.h>

#include <utility>

#include <nlohmann/json.hpp>

#include "bindings/analyse_python.h"
#include "bindings/compare_python.h"
#include "bindings/core_python.h"
#include "bindings/device_python.h"
#include "bindings/growth_torch.h"
#include "bindings/incident_python.h"
#include "bindings/inject_torch.h"
#include "bindings/instances_python.h"
#include "bindings/known_torch.h"
#include "bindings/listeners_torch.h"
#include "bindings/overlay_python.h"
#include "bindings/own_children_python.h"
#include "bindings/own_rules_python.h"
#include "bindings/pieces_torch.h"
#include "bindings/plain_python.h"
#include "bindings/signal_python.h"
#include "bindings/standby_python.h"
#include "bindings/step_calls_python.h"
#include "bindings/tape_python.h"
#include "bindings/values_python.h"
#include "bindings/windows_torch.h"
#include "finitude/scan.h"
#include "gate/clip_torch.h"
#include "gate/dropped_torch.h"
#include "gate/gate_cuda_torch.h"
#include "gate/gate_parts_torch.h"
#include "gate/hooks_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/post_step_scan_torch.h"
#include "gate/script_nan_checks_torch.h"
#include "gate/shared_gradients_torch.h"
#include "gate/step_wrapper_torch.h"
#include "gate/window_torch.h"
#include "observe/effort.h"
#include "observe/held_values_torch.h"
#include "observe/stream_watch_torch.h"
#include "observe/tracer_torch.h"
#include "observe/unseen_write_torch.h"
#include "observe/write_watch_torch.h"
#include "observe/zoned_memory_torch.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/meter.h"
#include "pyhost/places_torch.h"
#include "pyhost/tensor_subclass_torch.h"
#include "rewind/frames_values.h"
#include "rewind/loader_torch.h"
#include "rewind/manual_updates_torch.h"
#include "rewind/optimizer_undo_torch.h"
#include "rewind/rewind_torch.h"
#include "rewind/stack_torch.h"
#include "rewind/window_start_torch.h"
#include "show/show.h"
#include "standby/bound_template_torch.h"
#include "standby/first_step_torch.h"
#include "standby/step_signals_torch.h"
#include "standby/step_store_torch.h"
#include "standby/tape_level_torch.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

using nlohmann::json;

record::Origin origin_of(const std::string& name) {
  if (name == "parameter") return record::Origin::kParameter;
  if (name == "buffer") return record::Origin::kBuffer;
  if (name == "state") return record::Origin::kOptimizerState;
  if (name == "gradient") return record::Origin::kGradient;
  if (name == "constant") return record::Origin::kConstant;
  if (name == "batch") return record::Origin::kBatch;
  return record::Origin::kUnknown;
}

}  // namespace
}  // namespace finitude::bindings

PYBIND11_MODULE(_native, m) {
  using namespace finitude;
  using namespace finitude::bindings;
  m.doc() = "The engine of finitude. Internal: use the finitude package.";
  connect_listeners();
  PyModule_AddFunctions(m.ptr(), hook_methods());
  PyModule_AddFunctions(m.ptr(), step_wrapper_methods());
  PyModule_AddFunctions(m.ptr(), rewind_methods());
  PyModule_AddFunctions(m.ptr(), script_check_methods());
  PyModule_AddFunctions(m.ptr(), shared_gradient_methods());
  PyModule_AddFunctions(m.ptr(), dropped_methods());
  PyModule_AddFunctions(m.ptr(), manual_update_methods());
  PyModule_AddFunctions(m.ptr(), stack_methods());
  PyModule_AddFunctions(m.ptr(), meter_methods());
  PyModule_AddFunctions(m.ptr(), piece_methods());

  m.attr("version") = FINITUDE_VERSION;
  m.def("configure", [](py::object cold, py::object backward, py::object clip) {
    live().cold = Object::take(cold.release().ptr());
    live().original_backward = Object::take(backward.release().ptr());
    live().original_clip = Object::take(clip.release().ptr());
  });
  m.def("reset", [] {
    Live& l = live();
    // A new recorder counts again; how often an optimizer has stepped is the optimizer's own history.
    l.counters = Counters();
    l.gone_before = l.next_ordinal;
    for (const auto& entry : l.optimizers) {
      l.gone_before -= is_alive(*entry);
      close_window(*entry);
      entry->first_done = false;
    }
    l.losses.clear();
    l.threads.clear();
    l.step_thread = 0;
    l.threads_take_turns = false;
    l.ring.reset();
    loader_log().forget();
    forget_window_start();
    forget_signals();
    (void)close_store();
  });
  m.def("set_on", [](bool on) {
    live().on = on;
    if (on) return;
    leave_devices(false);
    forget_signals();  // a step that is looked at has a callback of torch's
  });
  m.def("is_on", [] { return live().on; });
  m.def("set_keeps_window_start", [](bool keeps) {
    live().keeps_window_start = keeps;
    forget_window_start();
    loader_log().forget();
  });
  // The watch is over. What is still held of the program would outlive the interpreter: files that it leaves open would
  // never be written out, as a class that is kept keeps its methods, and these the module that it is in.
  m.def("let_go", [] {
    forget_window_start();
    loader_log().forget();
    forget_types();
  });
  define_windows(m);
  define_incident(m);
  define_core(m);
  define_overlay(m);
  define_own_children(m);
  define_device(m);
  define_units(m);
  define_tape(m);
  define_standby(m);
  define_signal(m);
  define_analyse(m);
  define_compare(m);
  define_inject(m);
  define_instances(m);
  define_own_rules(m);
  m.def("enter_closure", [] { ++live().closure_depth; });
  m.def("leave_closure", [] { --live().closure_depth; });
  m.def("wake_on_backward", [] { live().wake_on_backward = true; });
  m.def("gradients_are_sinks", [](bool on) { live().gradients_are_sinks = on; });
  m.def("count_step", [](py::handle o) {
    ++entry_of(o).step;
    ++live().counters.steps;
  });

  m.attr("ROTATION") = kRotation;
  m.def("set_undo_budget", &set_undo_budget);
  m.def("undo_shortfall", &undo_shortfall);
  m.def("set_jump_budget", &set_jump_budget);
  m.def("jump_refused", &jump_refused);
  m.def("undo_step", [](py::handle o) { return undo_step(entry_of(o)); });

  m.def("arm_at", [](std::uint32_t ordinal, std::uint64_t first, std::uint64_t step, bool written) {
    live().target_set = true;
    live().target_first = first;
    live().target_ordinal = ordinal;
    live().target_step = step;
    live().target_written = written;
  });
  m.def("set_trace_level", [](bool on) { live().trace_level = on; });
  m.def("watch_writes", &observe::watch_writes);
  m.def("writes_seen", &observe::writes_seen);
  m.def("hold_values", &observe::hold_values);
  m.def("release_values", &observe::release_values);
  m.def("judge", [](py::handle o) {
    OptimizerEntry& e = entry_of(o);
    WindowVerdict verdict;
    const bool ok = judge_window(e, &verdict);
    e.closure_absmax = verdict.grad_absmax;
    return !ok || verdict.needs_cold;
  });
  m.def("backward_under_way", [] { return in_backward() ? live().backward_serial : 0; });
  m.def("commit", [](py::handle o, bool before_hooks) {
    OptimizerEntry& e = entry_of(o);
    WindowVerdict verdict;
    judge_window(e, &verdict);
    if (!commit_window(e, verdict, verdict.lr, before_hooks)) throw py::error_already_set();
  });

  define_values(m);
  define_growth(m);
  define_known(m);
  define_plain(m);
  m.def("watch_buffers", &watch_buffers);
  m.def("window_buffers", &window_buffers);
  // By Module.load_state_dict, which programs without a loader call between two steps. Before the first one,
  // first_forward_begins looks: what follows the load may be a calibration. A failure is not the program's.
  m.def("state_loaded", [] {
    as_guest([] {
      if (OpenWindow window; open_window(&window)) batch_given();
    });
  });
  m.def("buffers_turned_nan", [] { return buffer_snapshot().turned_nan(); });
  m.def("set_numpy_state_address", &set_numpy_state_address);
  m.def("watch_generators", [](const py::list& list) {
    std::vector<at::Generator> generators;
    for (const py::handle& item : list) {
      if (THPGenerator_Check(item.ptr())) generators.push_back(THPGenerator_Unwrap(item.ptr()));
    }
    watch_generators(std::move(generators));
  });
  m.def("watch_streams", [](const py::list& list) {
    if (!watch_streams(list.ptr())) throw py::error_already_set();
  });
  m.def("generators_sum", [] {  // of the states of those that are not the program's own
    RngState state;
    take_rng(&state);
    state.own.clear();
    return std::hash<std::string>{}(rng_bytes(state));
  });
  m.def("watch_device_generators", [](const py::list& list) {
    std::vector<at::Generator> generators;
    for (const py::handle& item : list) {
      if (THPGenerator_Check(item.ptr()) && !THPGenerator_Unwrap(item.ptr()).device().is_cpu())
        generators.push_back(THPGenerator_Unwrap(item.ptr()));
    }
    watch_device_generators(std::move(generators));
  });
  m.def("set_python_random", [](py::handle r) { set_python_random(r.ptr()); });

  m.def(
      "trace_start",
      [](bool again) {
        first_step_over();  // what is explained now is another step
        tape_level_rests();
        observe::unseen_writes().on = again || !live().trace_level;  // of one step, not of every healthy one
        trace_own_training();
        observe::Tracer::get().start(&places());
        note_trace_begun();
      },
      py::arg("again") = false);
  m.def("guard_memory", [] { observe::guard_memory(); });
  m.def("stream_event", [](std::uint8_t kind, std::uint64_t first, std::uint64_t second) {
    if (kind <= static_cast<std::uint8_t>(observe::StreamEvent::kGivenBack))
      observe::stream_event(static_cast<observe::StreamEvent>(kind), first, second, &handle_of);
  });
  m.def("trace_stop", [] {
    observe::Tracer::get().stop();
    observe::Tracer::thread_phase() = record::Phase::kForward;
  });
  m.def("trace_clear", [] { observe::Tracer::get().clear(); });
  m.def("trace_effort", [] {  // (ops, bytes read, bytes copied) of all traces of this process
    const observe::Effort& e = observe::effort();
    return std::make_tuple(e.ops.load(), e.read_bytes.load(), e.copied_bytes.load());
  });
  m.def("graph_of_bad_loss", [] { return live().bad_graph; });  // which kinds of nodes made the last one
  m.def("trace_on", [] { return observe::Tracer::get().on(); });
  m.def("trace_length", [] { return observe::Tracer::get().num_ops(); });
  m.def("unread_class", &unread_class);
  m.def("local_of", [](const at::Tensor& t) {
    return local_of(t);
  });  // the shard of a DTensor that lies here; else the tensor itself
  m.def("trace_name", [](const at::Tensor& given, const std::string& origin, const std::string& name) {
    const at::Tensor& t = local_of(given);
    if (TemplateInHand* const hand = template_in_hand()) return hand->name_in_trace(t, origin_of(origin), name);
    observe::Tracer::get().name_storage(*t.unsafeGetTensorImpl(), origin_of(origin), name);
  });
  m.def("trace_sink", [](const std::string& kind, const std::string& name, const at::Tensor& given) {
    const at::Tensor& t = local_of(given);
    if (TemplateInHand* const hand = template_in_hand()) return hand->add_sink(kind, name, t);
    // Of a sparse one the memory that an operator wrote: duplicates are not summed there.
    const at::Tensor written = t.is_sparse() ? t._values() : t;
    observe::Tracer::get().add_sink(kind, name, *written.unsafeGetTensorImpl(), 0);
  });

  m.def("render_terminal", [](const std::string& text, bool colour, int width, bool unicode) {
    const auto report = nlohmann::json::parse(text, nullptr, false);
    const std::string problem = report.is_discarded() ? "not JSON" : show::problem(report);
    if (!problem.empty()) throw py::value_error(problem);
    return show::terminal(report, {colour, width, unicode});
  });
  m.def("render_html", [](const std::string& text) {
    const auto report = nlohmann::json::parse(text, nullptr, false);
    const std::string problem = report.is_discarded() ? "not JSON" : show::problem(report);
    if (!problem.empty()) throw py::value_error(problem);
    return py::bytes(show::html(report));
  });
  m.def("report_problem", [](const std::string& text) {
    const auto report = nlohmann::json::parse(text, nullptr, false);
    return report.is_discarded() ? std::string("not JSON") : show::problem(report);
  });
}
