// finitude._native: what the Python package may call.
#include <torch/csrc/Generator.h>
#include <torch/extension.h>

#include <bit>
#include <utility>

#include <nlohmann/json.hpp>

#include "bindings/analyse_python.h"
#include "bindings/compare_python.h"
#include "bindings/core_python.h"
#include "bindings/device_python.h"
#include "bindings/inject_torch.h"
#include "bindings/instances_python.h"
#include "bindings/own_rules_python.h"
#include "bindings/tape_python.h"
#include "bindings/units_python.h"
#include "bindings/values_python.h"
#include "capture/own_checksum.h"
#include "finitude/scan.h"
#include "gate/checked_torch.h"
#include "gate/clip_torch.h"
#include "gate/guard_torch.h"
#include "gate/shared_torch.h"
#include "gate/verdict_torch.h"
#include "gate/window_torch.h"
#include "gate/written_torch.h"
#include "observe/effort.h"
#include "observe/held_values_torch.h"
#include "observe/tracer_torch.h"
#include "observe/write_watch_torch.h"
#include "pyhost/meter.h"
#include "pyhost/wrapped_torch.h"
#include "rewind/frames_values.h"
#include "rewind/hand_torch.h"
#include "rewind/jump_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/rewind_torch.h"
#include "rewind/stack_torch.h"
#include "show/capsule_ops.h"
#include "show/capsule_report.h"
#include "show/json_file.h"
#include "show/show.h"
#include "standby/first_step_torch.h"
#include "standby/last_step_torch.h"
#include "standby/tape_level_torch.h"
#include "standby/template_in_hand_torch.h"
#include "standby/template_tape_torch.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

using nlohmann::json;

OptimizerEntry& entry_of(py::handle optimizer) {
  OptimizerEntry* entry = find_entry(optimizer.ptr());
  if (entry == nullptr) throw py::key_error("this optimizer is not watched");
  return *entry;
}

void set_owner(const c10::TensorImpl& parameter, OptimizerEntry* entry, std::uint32_t index) {
  auto& owner = live().owner;
  for (auto [it, last] = owner.equal_range(&parameter); it != last; ++it) {
    if (it->second.first != entry) continue;
    it->second.second = index;
    return;
  }
  owner.emplace(&parameter, std::make_pair(entry, index));
}

// Parameters in order of the groups; kept by address only.
void register_optimizer(py::handle optimizer, bool in_torch, bool risky) {
  OptimizerEntry* entry = find_entry(optimizer.ptr());
  if (entry == nullptr) {
    first_step_is_ahead();
    entry = new_entry(optimizer.ptr());
  }
  if (entry == nullptr) throw py::type_error("the optimizer takes no weak reference");
  entry->in_torch = in_torch;
  entry->risky = risky;
  entry->predicted = std::max(entry->predicted, 1u);
  for_each_parameter(optimizer.ptr(), [&](std::uint32_t index, PyObject* p) {
    if (THPVariable_Check(p)) set_owner(*THPVariable_Unpack(p).unsafeGetTensorImpl(), entry, index);
    if (entry->marks.size() <= index) entry->marks.resize(index + 1);
  });
}

py::dict window(py::handle optimizer) {
  OptimizerEntry& e = entry_of(optimizer);
  py::dict out;
  out["step"] = e.step;
  out["ordinal"] = e.ordinal;
  out["backwards"] = e.backwards;
  out["norm_overflow"] = e.norm_overflow;
  out["norm_in_float64"] = overflowed_norm(e);
  out["norm_place"] = py::make_tuple(e.norm_place.file, e.norm_place.line);
  out["laundered"] = e.laundered;
  out["dropped"] = e.dropped;
  out["written_bad"] = e.written_bad;
  out["vanished"] = e.vanished;
  out["on_device"] = e.device != nullptr;
  py::list marks, losses;
  for (const GradMark& m : e.marks) marks.append(static_cast<int>(m.state));
  out["marks"] = marks;
  for (const LossNote& n : live().losses) {
    if (!in_window(e, n)) continue;
    py::dict d;
    d["serial"] = n.serial;
    d["value"] = n.value;
    d["sum"] = n.on_device ? std::bit_cast<std::uint64_t>(n.value) : n.sum;  // a device hands over the value alone
    d["bad"] = n.bad && !n.consumed;
    d["answered"] = n.bad && n.consumed;
    d["grad_bad"] = n.grad_bad;
    d["micro_batch"] = micro_batch_of(n);
    d["gradients_were_bad"] = was_bad_at(e, n);
    d["owned"] = owns(e, n);
    losses.append(d);
  }
  out["losses"] = losses;
  return out;
}

// Answered for: those of this optimizer's window, or all of them where it is None.
void consume_losses(py::handle optimizer) {
  if (optimizer.is_none()) {
    for (LossNote& n : live().losses) n.consumed = true;
    return;
  }
  OptimizerEntry& e = entry_of(optimizer);
  for (LossNote& n : live().losses) {
    if (n.serial > e.window_start && n.bad && !n.consumed && owns(e, n)) n.consumed = true;
  }
}

// Bad losses that no step answered for, with what is known of the optimizer that would have stepped next.
py::list pending_bad_losses() {
  py::list out;
  for (const LossNote& n : live().losses) {
    if (!n.bad || n.consumed || n.in_closure) continue;
    const OptimizerEntry* next = nullptr;
    for (const auto& e : live().optimizers) {
      if (e->first_done && n.serial > e->window_start && (next == nullptr || e->step > next->step)) next = e.get();
    }
    py::dict d;
    d["value"] = n.value;
    d["sum"] = n.sum;
    d["micro_batch"] = micro_batch_of(n);
    d["optimizer"] = next != nullptr ? next->class_name : "";
    d["ordinal"] = next != nullptr ? next->ordinal : 0;
    d["step"] = next != nullptr ? next->step : 0;
    out.append(d);
  }
  return out;
}

py::dict counters() {
  const Counters& c = live().counters;
  py::dict d;
  d["steps"] = c.steps;
  d["backward_calls"] = c.backward_calls;
  d["gradients_scanned"] = c.gradients_scanned;
  d["scaler_skips"] = c.scaler_skips;
  d["handled_by_script"] = c.handled_by_script;
  d["python_calls"] = c.python_calls;
  d["post_hooks"] = c.post_hooks;
  d["vetoes"] = c.vetoes;
  d["optimizers"] = live().next_ordinal - live().gone_before;
  d["entries"] = live().optimizers.size();
  d["on"] = live().on;
  d["tracing"] = observe::Tracer::get().on();
  return d;
}

// window_verdict(optimizer, buffers_turned_nan): what decide::judge makes of the window.
py::dict window_verdict(py::handle optimizer, bool buffers_turned_nan) {
  using Kind = decide::Verdict::Kind;
  const decide::Verdict v = verdict_of(entry_of(optimizer), buffers_turned_nan);
  py::dict d;
  d["kind"] = v.kind == Kind::kAlarm ? "alarm" : v.kind == Kind::kHandledByScript ? "handled-by-script" : "nothing";
  d["sink"] = std::string(decide::report_word(v.sink));
  d["is_grad_output"] = v.sink == decide::SinkKind::kGradOutput;
  d["harmless"] = v.harmless;
  d["micro_batch"] = v.micro_batch;
  d["times"] = v.times;
  d["norm_overflow"] = v.norm_overflow_advisory;
  return d;
}

// history(ordinal): (loss, gradient absmax, learning rate) of the last applied steps of that optimizer, oldest first.
py::list history(std::uint32_t ordinal) {
  constexpr std::size_t kPoints = 32;
  record::RingContents ring;
  std::string error;
  std::vector<py::tuple> points;
  if (live().ring && live().ring->on() && record::read_ring(live().ring->bytes(), &ring, &error)) {
    for (auto it = ring.records.rbegin(); it != ring.records.rend() && points.size() < kPoints; ++it) {
      if (it->optimizer != ordinal || (it->flags & record::kStepApplied) == 0) continue;
      points.push_back(py::make_tuple(it->loss, it->grad_absmax, it->lr));
    }
  }
  py::list out;
  for (auto it = points.rbegin(); it != points.rend(); ++it) out.append(*it);
  return out;
}

// ring_steps(ordinal): (step, loss, gradient absmax, learning rate) of all applied steps of that optimizer that the
// ring still holds.
py::list ring_steps(std::uint32_t ordinal) {
  record::RingContents ring;
  std::string error;
  py::list out;
  if (!live().ring || !live().ring->on() || !record::read_ring(live().ring->bytes(), &ring, &error)) return out;
  for (const record::StepRecord& step : ring.records)
    if (step.optimizer == ordinal && (step.flags & record::kStepApplied) != 0)
      out.append(py::make_tuple(step.step, step.loss, step.grad_absmax, step.lr));
  return out;
}

// open_ring(path): the ring of steps in that file, or in memory where there is none. Returns why not, or "".
std::string open_ring(const std::string& path) {
  live().ring = std::make_unique<record::RingWriter>(path);
  return live().ring->why_no_file();
}

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
  PyModule_AddFunctions(m.ptr(), live_methods());
  PyModule_AddFunctions(m.ptr(), guard_methods());
  PyModule_AddFunctions(m.ptr(), rewind_methods());
  PyModule_AddFunctions(m.ptr(), checked_methods());
  PyModule_AddFunctions(m.ptr(), shared_methods());
  PyModule_AddFunctions(m.ptr(), dropped_methods());
  PyModule_AddFunctions(m.ptr(), hand_methods());
  PyModule_AddFunctions(m.ptr(), stack_methods());
  PyModule_AddFunctions(m.ptr(), meter_methods());
  PyModule_AddFunctions(m.ptr(), piece_methods());

  m.attr("version") = FINITUDE_VERSION;
  m.def("configure", [](py::object cold, py::object backward, py::object clip) {
    live().cold = cold.release().ptr();
    live().original_backward = backward.release().ptr();
    original_clip = clip.release().ptr();
  });
  m.def("reset", [] {
    Live& l = live();
    // A new recorder counts again; how often an optimizer has stepped is the optimizer's own history.
    l.counters = Counters();
    l.gone_before = l.next_ordinal;
    for (const auto& entry : l.optimizers) {
      l.gone_before -= PyWeakref_GetObject(entry->ref) == entry->self;
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
  });
  m.def("set_on", [](bool on) {
    live().on = on;
    if (!on) leave_devices(false);
  });
  m.def("is_on", [] { return live().on; });
  m.def("set_keeps_window_start", [](bool keeps) {
    live().keeps_window_start = keeps;
    forget_window_start();
    loader_log().forget();
  });
  // The watch is over. What is still held of the program would outlive the interpreter: files that it leaves open would
  // never be written out, as a class that is kept keeps its methods, and these the module that it stands in.
  m.def("let_go", [] {
    forget_window_start();
    loader_log().forget();
    forget_types();
  });
  m.def("register_optimizer", &register_optimizer);
  m.def("is_registered", [](py::handle o) { return find_entry(o.ptr()) != nullptr; });
  m.def("window", &window);
  m.def("close_window", [](py::handle o) { close_window(entry_of(o)); });
  m.def("consume_losses", &consume_losses);
  m.def("pending_bad_losses", &pending_bad_losses);
  m.def("counters", &counters);
  m.def("history", &history);
  m.def("ring_steps", &ring_steps);
  m.def("window_verdict", &window_verdict);
  m.def("open_ring", &open_ring);
  m.def("let_go_of_ring", [] {
    if (live().ring) live().ring->let_go();
  });
  define_core(m);
  define_device(m);
  define_units(m);
  define_tape(m);
  define_tape_level(m);
  define_template_tape(m);
  define_analyse(m);
  define_compare(m);
  define_inject(m);
  define_instances(m);
  define_first_step(m);
  define_last_step(m);
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
    commit_window(e, verdict, verdict.lr, before_hooks);
  });

  define_values(m);
  m.def("watch_buffers", &watch_buffers);
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
  // capsule_ops(folder) -> (text with one JSON line for each op, why there is none)
  m.def("capsule_ops", [](const std::string& folder) {
    nlohmann::json about, ops;
    const std::string why = show::ops_of_capsule(folder, about, ops);
    std::string lines;
    for (const nlohmann::json& op : ops)
      lines += op.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
    return std::make_pair(lines, why);
  });
  // report_of_capsule(text of capsule.json, folder) -> (text of a report, "") or ("", why there is none)
  m.def("report_of_capsule", [](const std::string& text, const std::string& folder) {
    nlohmann::json about, report;
    std::string why = show::parse_json(text, about);
    if (why.empty()) why = capture::check_own_checksum(text, about).why();
    if (why.empty()) why = show::report_of_capsule(about, folder, report);
    return std::pair(why.empty() ? report.dump() : std::string(), why);
  });
}
