#include "bindings/windows_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gate/clip_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/verdict_torch.h"
#include "gate/window_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/user_stack.h"
#include "rewind/window_start_torch.h"
#include "standby/step_store_torch.h"

namespace finitude::bindings {

namespace py = pybind11;

OptimizerEntry& entry_of(py::handle optimizer) {
  OptimizerEntry* entry = find_entry(optimizer.ptr());
  if (entry == nullptr) throw py::key_error("this optimizer is not watched");
  return *entry;
}

namespace {

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
    if (entry != nullptr) entry->made_at = live().next_serial;
    // What a step has answered for before is not this optimizer's, if it is made over the same parameters.
    for (const LossNote& note : live().losses) {
      if (entry != nullptr && note.consumed) entry->window_start = note.serial;
    }
  }
  if (entry == nullptr) throw py::type_error("the optimizer takes no weak reference");
  entry->in_torch = in_torch;
  entry->risky = risky;
  entry->predicted = std::max(entry->predicted, 1u);
  for_each_parameter(optimizer.ptr(), [&](std::uint32_t index, PyObject* p) {
    if (is_tensor_object(p)) set_owner(*THPVariable_Unpack(p).unsafeGetTensorImpl(), entry, index);
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

// history(ordinal): (loss, gradient absmax without the loss scale, learning rate) of the steps of applied_steps().
py::list history(std::uint32_t ordinal) {
  py::list out;
  for (const record::StepRecord& step : applied_steps(ordinal))
    out.append(py::make_tuple(step.loss, step.grad_absmax, step.lr));
  return out;
}

// ring_steps(ordinal): (step, loss, gradient absmax without the loss scale, learning rate) of all applied steps of that
// optimizer that the ring still holds.
py::list ring_steps(std::uint32_t ordinal) {
  record::RingContents ring;
  std::string error;
  py::list out;
  if (!live().ring || !live().ring->on() || !record::read_ring(live().ring->bytes(), &ring, &error)) return out;
  for (const record::StepRecord& step : ring.records)
    if (step.optimizer == ordinal && (step.flags & record::kStepApplied) != 0)
      out.append(py::make_tuple(step.step, step.loss, record::unscaled_gradient(step), step.lr));
  return out;
}

// open_ring(path): the ring of steps in that file, or in memory where there is none. Returns why not, or "".
std::string open_ring(const std::string& path) {
  live().ring = std::make_unique<record::RingWriter>(path);
  return live().ring->why_no_file();
}

// The values of an object's attributes, slots too, that are watched optimizers. Not by vars(), which makes a dict of
// them that all later accesses of the program's have to go through (CPython 3.11 and 3.12).
struct Held {
  std::vector<PyObject*> optimizers;  // borrowed

  static int note(PyObject* value, void* held) {
    if (find_entry(value) != nullptr) static_cast<Held*>(held)->optimizers.push_back(value);
    return 0;
  }
  static int visit(PyObject* value, void* held) {
    if (!PyDict_CheckExact(value)) return note(value, held);
    PyObject *key, *inner;
    for (Py_ssize_t at = 0; PyDict_Size(value) <= kMostAttributes && PyDict_Next(value, &at, &key, &inner) != 0;)
      note(inner, held);
    return 0;
  }
  static constexpr Py_ssize_t kMostAttributes = 1000;
};

// user_place(most) -> ((function, file, line), ...) of the innermost frames of the program's own code, of files alone.
py::tuple user_place(std::size_t most) {
  std::vector<FrameId> frames;
  walk_stack([&](RawFrame* frame, CodeInfo* info) {
    if (!info->library && !info->file.starts_with('<')) frames.push_back(frame_id(info, frame_site(frame)));
    return frames.size() < most;
  });
  py::list place;  // made last: the stack is walked while no Python code runs
  for (const FrameId id : frames)
    place.append(py::make_tuple(frame_at(id).function, frame_at(id).file, frame_at(id).line));
  return py::tuple(place);
}

// watched_inside(optimizer) -> the watched optimizers that it holds and lets step.
py::list watched_inside(py::handle optimizer) {
  Held held;
  if (const traverseproc traverse = Py_TYPE(optimizer.ptr())->tp_traverse; traverse != nullptr)
    traverse(optimizer.ptr(), &Held::visit, &held);
  py::list found;
  for (PyObject* one : held.optimizers) found.append(py::reinterpret_borrow<py::object>(one));
  return found;
}

}  // namespace

std::vector<record::StepRecord> applied_steps(std::uint32_t ordinal) {
  constexpr std::size_t kPoints = 32;
  record::RingContents ring;
  std::string error;
  std::vector<record::StepRecord> steps;
  if (!live().ring || !live().ring->on() || !record::read_ring(live().ring->bytes(), &ring, &error)) return steps;
  for (auto it = ring.records.rbegin(); it != ring.records.rend() && steps.size() < kPoints; ++it) {
    if (it->optimizer != ordinal || (it->flags & record::kStepApplied) == 0) continue;
    steps.push_back(*it);
    steps.back().grad_absmax = record::unscaled_gradient(*it);
  }
  std::ranges::reverse(steps);
  return steps;
}

void define_windows(py::module_& m) {
  m.def("register_optimizer", &register_optimizer);
  m.def("is_registered", [](py::handle o) { return find_entry(o.ptr()) != nullptr; });
  m.def("is_trained_here", [](py::handle o) {
    const OptimizerEntry* entry = find_entry(o.ptr());
    return entry != nullptr && is_trained_here(*entry);
  });
  m.def("user_place", &user_place);
  m.def("watched_inside", &watched_inside);
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
    let_go_of_store();
  });
}

}  // namespace finitude::bindings
