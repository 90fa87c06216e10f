#include "gate/window_torch.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "gate/dropped_torch.h"
#include "gate/gate_cuda_torch.h"
#include "gate/gradients_torch.h"
#include "gate/listeners.h"
#include "gate/marks_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/post_hook_torch.h"
#include "gate/post_step_scan_torch.h"
#include "gate/script_nan_checks_torch.h"
#include "gate/second_run.h"
#include "gate/stream_cuda_torch.h"
#include "gate/verdict_torch.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "observe/unseen_write_torch.h"
#include "pyhost/meter.h"
#include "pyhost/places_torch.h"

namespace finitude::bindings {

namespace {

// Is this element of the gradient not zero now?
bool element_set(const at::Tensor& grad, std::int64_t index) {
  observe::TensorView v;
  if (index < 0 || !observe::view_of(*grad.unsafeGetTensorImpl(), &v) || !v.contiguous || index >= v.numel)
    return false;
  const std::int64_t item = static_cast<std::int64_t>(grad.itemsize());
  return sense::full_scan(v.data + index * item, 1, v.dtype).zero == 0;
}

bool is_target(const OptimizerEntry& entry, std::uint64_t step) {
  const Live& l = live();
  return l.target_set && entry.ordinal == l.target_ordinal && step == l.target_step;
}

OptimizerEntry::Probe probe_of(PyObject* parameter) {
  const at::Tensor* grad = gradient_of(parameter);
  if (grad == nullptr) return {};
  return {grad->unsafeGetTensorImpl(), version_of(*grad->unsafeGetTensorImpl())};
}

enum class Wrote { kNo, kYes, kUnknown };  // unknown: its first few parameters have no gradients

// Counts the backward calls of this window that wrote gradients of this optimizer, by its first few parameters. Those
// before it had any (an optimizer that is made early and steps late) were none of its.
Wrote count_backward(OptimizerEntry& entry, const ParamGroups& groups) {
  bool touched = false, any = false, had = false;
  groups.for_first(OptimizerEntry::kProbes, [&](std::uint32_t index, PyObject* p) {
    const OptimizerEntry::Probe now = probe_of(p), before = entry.probes[index];
    entry.probes[index] = now;
    had = had || before.grad != nullptr;
    if (now.grad == nullptr) return;
    any = true;
    touched = touched || now.grad != before.grad || now.version != before.version;
  });
  if (any && !touched) return Wrote::kNo;
  if (touched && entry.touched == 0) entry.touched = live().next_serial;
  entry.backwards = entry.begins_anew || (touched && !had) ? 1 : entry.backwards + 1;
  return touched ? Wrote::kYes : Wrote::kUnknown;
}

void gradients_to_tracer(const OptimizerEntry& entry, const char* kind) {
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    const at::Tensor* grad = gradient_of(p);
    if (grad == nullptr || index >= entry.marks.size() || entry.marks[index].state <= GradMark::kClean) return;
    observe::Tracer::get().add_sink(kind, std::to_string(index), *grad->unsafeGetTensorImpl(), 0);
  });
}

// Is any of them bad?
bool scan_all(OptimizerEntry& entry, const ParamGroups& groups) {
  const Metered gradients(Piece::kGradients);
  bool any_bad = false;
  groups.for_first(UINT32_MAX, [&](std::uint32_t index, PyObject* p) {
    if (index >= entry.marks.size()) entry.marks.resize(index + 1);
    if (const at::Tensor* grad = gradient_of(p)) {
      live().counters.gradients_scanned += judge_again(entry, index, *grad, true);
      any_bad |= entry.marks[index].state > GradMark::kClean;
    } else {
      entry.marks[index] = GradMark();
    }
  });
  return any_bad;
}

}  // namespace

// Accumulation adds to what the backward before left, by as many writes as it takes (DistributedDataParallel's are
// several); gradients that were zeroed or replaced since begin the count again. A gradient that is gone by now may be
// followed by one at its address, which is not to pass for it.
void before_backward() {
  // What the backward before left, before this one leaves its own in its place.
  for (const auto& entry : live().optimizers) {
    if (entry->bad_since != 0) entry->stands_elsewhere = stands_elsewhere(*entry);
  }
  for (const auto& entry : live().optimizers) {
    entry->begins_anew = false;
    if (PyWeakref_GetObject(entry->ref) != entry->self) continue;
    const ParamGroups groups(entry->self);
    if (entry->backwards == 0) {
      groups.for_first(1, [&](std::uint32_t, PyObject* p) {
        const bool gone = entry->probes[0].grad != nullptr && gradient_of(p) == nullptr;
        if (gone) std::fill(std::begin(entry->probes), std::end(entry->probes), OptimizerEntry::Probe());
      });
      continue;
    }
    groups.for_first(OptimizerEntry::kProbes, [&](std::uint32_t index, PyObject* p) {
      const OptimizerEntry::Probe now = probe_of(p), before = entry->probes[index];
      entry->begins_anew =
          entry->begins_anew || (before.grad != nullptr && (now.grad != before.grad || now.version != before.version));
    });
  }
}

void after_backward() {
  const Metered rest(Piece::kVerdict);
  Live& l = live();
  std::uint32_t micro_batch = 0, guessed = 0;
  bool is_known = false;
  PyObject* left_bad = nullptr;
  const std::uint64_t thread = this_thread();
  // What another thread trains is in the middle of a step of its own.
  const bool apart = l.threads_take_turns && std::any_of(l.optimizers.begin(), l.optimizers.end(),
                                                         [&](const auto& e) { return e->thread == thread; });
  // Marks are valid only for gradients that no later backward touched.
  for (const auto& entry : l.optimizers) {
    if (PyWeakref_GetObject(entry->ref) != entry->self || (apart && entry->thread != 0 && entry->thread != thread))
      continue;
    const ParamGroups groups(entry->self);
    const Wrote wrote = count_backward(*entry, groups);
    is_known = is_known || wrote == Wrote::kYes;
    if (wrote == Wrote::kYes) micro_batch = std::max(micro_batch, entry->backwards - 1);
    if (wrote == Wrote::kUnknown) guessed = std::max(guessed, entry->backwards - 1);
    if (entry->device) {  // scanned once, when it steps or is clipped
      if (entry->begins_anew) note_dropped(*entry, entry->norm_overflow ? Dropped::kNorm : Dropped::kFinite);
      entry->norm_overflow = entry->norm_overflow && !entry->begins_anew;
      entry->device->seen.clear();
      continue;
    }
    bool was_bad = false;
    GradMark bad;
    std::size_t bad_index = 0;
    for (std::size_t i = 0; i < entry->marks.size(); ++i) {
      if (entry->marks[i].state <= GradMark::kClean) continue;
      was_bad = true;
      bad = entry->marks[i];
      bad_index = i;
    }
    const bool loss_bad = !l.losses.empty() && l.losses.back().bad;
    const bool expected = entry->backwards == entry->predicted && !entry->clip_proves && !entry->is_inner;
    bool any_bad = false;
    const bool traced = observe::Tracer::get().on() && !observe::Tracer::get().sketches();
    if (loss_bad || was_bad || expected || traced || l.gradients_are_sinks)
      any_bad = scan_all(*entry, groups);
    else if (!entry->marks.empty())
      std::fill(entry->marks.begin(), entry->marks.end(), GradMark());
    Dropped dropped = entry->norm_overflow ? Dropped::kNorm : Dropped::kFinite;
    bool is_gone = entry->begins_anew;
    const std::uint64_t bad_since = entry->bad_since;
    if (was_bad) {
      // Accumulation adds one write to the same tensor; anything else means that the bad gradients were dropped.
      const GradMark& now = entry->marks[bad_index];
      const bool anew = entry->begins_anew;  // even where the new gradient lies at the address of the old one
      const bool gone = anew || now.state == GradMark::kClean || now.grad != bad.grad || now.version != bad.version + 1;
      is_gone = gone && bad.reported == 0 && !entry->stands_elsewhere;
      dropped = Dropped::kBad;
      if (gone && (anew || now.grad != bad.grad || now.version != bad.version)) entry->bad_since = 0;
    }
    if (is_gone) {
      entry->dropped += note_dropped(*entry, dropped, bad_since) && was_bad;
      entry->norm_overflow = false;
    }
    if (l.gradients_are_sinks) gradients_to_tracer(*entry, "gradient");
    if (l.gradients_are_sinks && any_bad && left_bad == nullptr)
      left_bad = entry->self;
    else if (traced && any_bad)
      gradients_to_tracer(*entry, kLeftByBackward);
    if (any_bad) note_bad_marks(*entry, loss_bad);
    if (any_bad) note_left_bad(*entry);
  }
  if (!is_known) micro_batch = guessed;
  for (auto& note : l.losses) {
    if (note.micro_batch == static_cast<std::uint32_t>(-1) && (!apart || note.thread == thread))
      note.micro_batch = micro_batch;
  }
  if (observe::Tracer::get().on()) {
    observe::Tracer::get().set_micro_batch(micro_batch + 1);
  }
  listeners().backward_ended();
  if (left_bad == nullptr) return;
  PyObject* r = call_cold("on_left_bad", left_bad);
  Py_XDECREF(r);  // null: a signal handler of the program has raised; the error stays, and backward raises it
}

bool judge_window(OptimizerEntry& entry, WindowVerdict* verdict, bool may_be_late) {
  const Metered gradients(Piece::kGradients);
  Live& l = live();
  std::uint32_t seen = 0;
  DeviceGate* const device = entry.device.get();
  if (device != nullptr) device->begin();
  SliceScan slice(entry);
  const ParamGroups groups(entry.self);
  verdict->lr = groups.lr(entry.lr);
  const bool ok = groups.for_first(UINT32_MAX, [&](std::uint32_t index, PyObject* p) {
    slice.visit(p);
    if (index >= entry.marks.size()) entry.marks.resize(index + 1);
    GradMark& mark = entry.marks[index];
    const at::Tensor* grad = gradient_of(p);
    if (grad == nullptr) {
      verdict->laundered += mark.state > GradMark::kClean && mark.reported == 0;
      mark = GradMark();
      return;
    }
    const c10::TensorImpl* impl = grad->unsafeGetTensorImpl();
    if (device != nullptr && device->take(index, *grad)) {
      mark = GradMark();
      return;
    }
    // A bad one is looked at again: writes through .data or numpy leave the version as it was.
    if (mark.state != GradMark::kClean || mark.grad != impl || mark.version != version_of(*impl)) {
      const GradMark before = mark;
      seen += judge_again(entry, index, *grad, false);
      if (before.state > GradMark::kClean && mark.state == GradMark::kClean) {
        const bool clamped =
            before.state == GradMark::kInfinite && before.grad == impl && element_set(*grad, before.first_bad);
        (clamped ? verdict->clamped : verdict->laundered) += clamped || before.reported == 0;
        if (clamped) {
          mark.state = GradMark::kInfinite;
          mark.reported = before.reported;
          mark.explained = before.explained;
        }
      }
    }
    verdict->bad_gradients += mark.state > GradMark::kClean;
    verdict->grad_absmax = std::max(verdict->grad_absmax, mark.absmax);
  });
  l.counters.gradients_scanned += seen;
  if (verdict->bad_gradients != 0) {
    note_bad_marks(entry, false);
    forget_asked();
  }
  entry.written_bad = slice.end();
  const Metered rest(Piece::kVerdict);
  if (verdict->laundered != 0 && verdict->bad_gradients == 0 && stands_elsewhere(entry)) verdict->laundered = 0;
  verdict->laundered += entry.dropped;
  entry.laundered = verdict->laundered != 0;
  bool bad_loss = false, loss_set = false;
  const auto look_at_losses = [&] {
    bad_loss = loss_set = false;
    for (const LossNote& note : l.losses) {
      if (!in_window(entry, note)) continue;
      bad_loss |= note.bad && !note.consumed;
      loss_set |= note.value != 0;
    }
  };
  look_at_losses();
  const bool rare = !ok || verdict->laundered != 0 || entry.written_bad || listeners().buffer_turned_nan() ||
                    (second_run_under_way() && !listeners().is_jumped_over(entry)) || any_dropped_check() ||
                    units_run_again() || is_target(entry, entry.step) ||
                    (l.target_written && entry.step > 0 && is_target(entry, entry.step - 1));
  if (device != nullptr) {
    settle_device(entry, verdict, may_be_late && !rare && !bad_loss && verdict->bad_gradients == 0);
    look_at_losses();
    verdict->scaler_skip = verdict->scaler_skip && !bad_loss;
  }
  const bool zero =
      loss_set && verdict->bad_gradients == 0 && verdict->grad_absmax == 0 && !verdict->late && !verdict->unknown;
  const bool news = zero && entry.had_gradient && !entry.vanished;
  entry.vanished |= news;
  entry.had_gradient |= verdict->grad_absmax > 0;
  verdict->needs_cold = rare || bad_loss || verdict->bad_gradients != 0 || entry.norm_overflow || news ||
                        entry.drops.untold > entry.dropped;
  return ok;
}

void close_window(OptimizerEntry& entry) {
  const Metered verdict(Piece::kVerdict);
  Live& l = live();
  ++l.windows_closed;
  if (!units_run_again()) listeners().closed();
  end_stream_window(entry);
  if (entry.dropped == 0) entry.predicted = entry.backwards;  // a window that was dropped says nothing of the next
  entry.backwards = 0;
  entry.norm_overflow = false;
  entry.dropped = entry.drops.untold = 0;
  entry.bad_since = 0;
  entry.window_start = l.next_serial;
  entry.touched = 0;
  std::fill(entry.marks.begin(), entry.marks.end(), GradMark());
  std::uint64_t oldest = l.next_serial;
  for (const auto& e : l.optimizers) {
    if (PyWeakref_GetObject(e->ref) == e->self) oldest = std::min(oldest, e->window_start);
  }
  // A finite loss of long ago tells nothing: an optimizer that never steps must not make the list grow.
  constexpr std::uint64_t kFiniteNotes = 256;
  std::erase_if(l.losses, [&](const LossNote& n) {
    return n.serial <= oldest || (!n.bad && n.serial + kFiniteNotes < l.next_serial);
  });
  observe::Tracer::get().set_micro_batch(0);
}

void record_step(const OptimizerEntry& entry, const WindowVerdict& verdict, double lr, std::uint32_t flags) noexcept {
  if (!live().ring || second_run_under_way() || units_run_again()) return;
  const Metered ring(Piece::kRing);
  double loss = 0;
  for (const LossNote& note : live().losses) {
    if (note.serial > entry.window_start) loss = note.value;
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  live().ring->push({entry.step, entry.ordinal, flags | record::loss_scale_flags(live().loss_scale), loss,
                     verdict.grad_absmax, lr,
                     static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count())});
}

bool begin_trace_of_target(const OptimizerEntry& entry) {
  const Live& l = live();
  if (!l.target_set || entry.ordinal != l.target_ordinal || entry.step != l.target_first) return false;
  if (observe::Tracer& tracer = observe::Tracer::get(); !tracer.on()) {
    observe::unseen_writes().on = true;
    tracer.start(&places());
    if (l.tape_when_armed != 0) observe::TapeRecorder::get().start(l.tape_when_armed, &places());
  }
  return true;
}

void commit_window(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, bool may_hook) {
  const Metered rest(Piece::kVerdict);
  Live& l = live();
  listeners().step_is_good(entry);
  ++l.counters.steps;
  listeners().applied(entry);
  note_learned(entry, verdict.grad_absmax != 0 || verdict.late || verdict.unknown);
  if (!verdict.late) record_step(entry, verdict, lr, record::kStepApplied);
  // The optimizer's own arithmetic can make a NaN here; a healthy step of a torch.optim class is not looked at again.
  const bool odd =
      !(std::isfinite(lr)) || (entry.lr > 0 && lr > 2 * entry.lr) || entry.step < 2 || verdict.grad_absmax > 1.8e19;
  entry.lr = lr;
  ++entry.step;
  begin_trace_of_target(entry);
  observe::Tracer& tracer = observe::Tracer::get();
  const bool armed = tracer.on() && !tracer.sketches();
  const bool taped = listeners().records_next();
  if ((armed || taped) && may_hook && entry.in_torch) observe::Tracer::thread_phase() = record::Phase::kOptimizer;
  const bool undoable = may_hook && !second_run_under_way() && prepare_undo(entry);
  entry.looks_after = entry.risky || odd || armed || undoable;
  if (may_hook && entry.in_torch && (entry.looks_after || taped)) arm_post_hook(entry);
  // A healthy window ends where what the step wrote has been looked at, if anyone does.
  const bool clears = (l.trace_level || l.trace_first) && tracer.on() && !second_run_under_way();
  entry.clears_trace = clears && entry.looks_after && entry.armed_post;
  if (clears && !entry.clears_trace) listeners().trace_ended();
  close_window(entry);
  if (taped) listeners().next_begins(entry, may_hook && (!entry.in_torch || entry.armed_post));
  entry.snapshot_pending = undoable;
  if (!undoable) listeners().starts(entry);
}

void finish_commit(OptimizerEntry& entry) {
  listeners().step_over();
  if (!entry.snapshot_pending) return;
  entry.snapshot_pending = false;
  entry.undo->forget();
  listeners().starts(entry);
}

}  // namespace finitude::bindings
