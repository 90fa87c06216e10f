// One window from its first backward to its step. Facts are collected after each backward and before the step; the
// decision itself is in src/decide. All functions are called with the GIL held and run no Python code in a healthy
// window.
// Marks (GradMark) hold one reading of each gradient: tensor, version and result. A gradient is read again only if
// tensor or version differ, so in the usual loop each gradient is read once.
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
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {

namespace {

// Is this element of the gradient not zero now? Distinguishes a script that clamped an Inf (the element keeps a value,
// and the update is wrong) from one that zeroed it (handled).
bool element_set(const at::Tensor& grad, std::int64_t index) {
  observe::TensorView v;
  if (index < 0 || !observe::view_of(*grad.unsafeGetTensorImpl(), &v) || !v.contiguous || index >= v.numel)
    return false;
  const std::int64_t item = static_cast<std::int64_t>(grad.itemsize());
  return sense::full_scan(v.data + index * item, 1, v.dtype).zero == 0;
}

// Is this the step that this process was started to explain?
bool is_target(const OptimizerEntry& entry, std::uint64_t step) {
  const Live& l = live();
  return l.target_set && entry.ordinal == l.target_ordinal && step == l.target_step;
}

// What identifies a gradient between two backwards. The pointer is not owned: it is compared, never followed.
OptimizerEntry::Probe probe_of(PyObject* parameter) {
  const at::Tensor* grad = gradient_of(parameter);
  if (grad == nullptr) return {};
  return {grad->unsafeGetTensorImpl(), version_of(*grad->unsafeGetTensorImpl())};
}

enum class Wrote { kNo, kYes, kUnknown };  // unknown: its first few parameters have no gradients

// Counts the backward calls of this window that wrote gradients of this optimizer, by its first few parameters: to
// look at all of them after each micro-batch would cost more than the scan. Calls before it had gradients (an
// optimizer that is made early and steps late) do not count.
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

// Bad gradients become sinks of the trace, where the search for the birth starts.
void gradients_to_tracer(const OptimizerEntry& entry, const char* kind) {
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    const at::Tensor* grad = gradient_of(p);
    if (grad == nullptr || index >= entry.marks.size() || entry.marks[index].state <= GradMark::kClean) return;
    observe::Tracer::get().add_sink(kind, std::to_string(index), *grad->unsafeGetTensorImpl(), 0);
  });
}

// Reads every gradient of the optimizer into its mark. Is any of them bad?
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

// Runs before an outermost backward. Finds out for each optimizer whether gradients were zeroed or replaced since the
// last backward. After the next backward this cannot be seen any more: accumulation adds to what is there, by as many
// writes as it takes (DistributedDataParallel needs several), so versions alone do not show it. A gradient that is
// gone by now may be followed by one at the same address, which must not count as the same.
void before_backward() {
  // What the backward before left, before this one leaves its own in its place.
  for (const auto& entry : live().optimizers) {
    if (entry->bad_since != 0 && is_trained_here(*entry)) entry->stands_elsewhere = stands_elsewhere(*entry);
  }
  for (const auto& entry : live().optimizers) {
    if (!is_trained_here(*entry)) continue;
    entry->begins_anew = false;
    if (!is_alive(*entry)) continue;
    const ParamGroups groups(entry->self);
    // Window without a backward so far: only gradients that are gone matter. Their probes are cleared, since the
    // allocator may reuse the address.
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

// Runs after an outermost backward that did not raise. Reads gradients now if this backward is expected to be the last
// of its window (`predicted`, from the window before), if something was bad, or if a trace needs it. In other
// micro-batches the marks are only invalidated, so that gradient accumulation costs one scan per step.
// At most one Python callback is made, at the end: the walk over `optimizers` must not run code that adds to them.
void after_backward() {
  const Metered rest(Piece::kVerdict);
  Live& l = live();
  std::uint32_t micro_batch = 0, guessed = 0;
  bool is_known = false;
  PyObject* left_bad = nullptr;
  const std::uint64_t thread = this_thread();
  const bool is_separate = has_own_training();
  // Marks are valid only for gradients that no later backward touched.
  for (const auto& entry : l.optimizers) {
    if (!is_alive(*entry) || (is_separate && entry->thread != 0 && entry->thread != thread)) continue;
    const ParamGroups groups(entry->self);
    const Wrote wrote = count_backward(*entry, groups);
    if (wrote != Wrote::kNo) entry->is_unscaled = false;  // what a backward adds is scaled
    is_known = is_known || wrote == Wrote::kYes;
    if (wrote == Wrote::kYes) micro_batch = std::max(micro_batch, entry->backwards - 1);
    if (wrote == Wrote::kUnknown) guessed = std::max(guessed, entry->backwards - 1);
    if (entry->device) {  // scanned once, when it steps or is clipped
      if (entry->begins_anew) note_dropped(*entry, entry->norm_overflow ? Dropped::kNorm : Dropped::kFinite);
      entry->norm_overflow = entry->norm_overflow && !entry->begins_anew;
      entry->device->seen.clear();
      continue;
    }
    // The last bad mark from before this backward; whether the script dropped it is decided below.
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
    // Not if a finite clip norm proved the window before: clipping will read these gradients.
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
      // Accumulation writes to the same tensor, once, or as DistributedDataParallel does once more for the average.
      // Anything else means that the bad gradients were dropped.
      const GradMark& now = entry->marks[bad_index];
      const bool anew = entry->begins_anew;  // even where the new gradient lies at the address of the old one
      const bool gone = anew || now.state == GradMark::kClean || now.grad != bad.grad || now.version <= bad.version;
      // A gradient that an alarm has reported, or that belongs to the step of another optimizer, was not dropped by
      // the script.
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
  // Losses of this backward got the placeholder -1. The number is known only now, from the optimizer that it wrote.
  if (!is_known) micro_batch = guessed;
  for (auto& note : l.losses) {
    if (note.micro_batch == static_cast<std::uint32_t>(-1) && (!is_separate || note.thread == thread))
      note.micro_batch = micro_batch;
  }
  if (observe::Tracer::get().on()) {
    observe::Tracer::get().set_micro_batch(micro_batch + 1);
  }
  listeners().backward_ended();
  if (left_bad == nullptr) return;
  // It fails where a signal handler of the program has raised; run_backward finds the error and raises it.
  call_cold("on_left_bad", left_bad);
}

// The one walk over the parameters of a step: gradients, the slice of what earlier steps wrote (SliceScan), and the
// list for the device are taken together, since the walk over Python lists has a cost of its own. Nothing
// allocates once marks and device tables have their size. Returns false where param_groups cannot be read.
// needs_cold is set for anything that is not a plain healthy step: the caller then asks Python.
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
      // Bad after backward and gone now: the script has handled it. decide::judge counts it.
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
      verdict->zeroed |= before.state == GradMark::kClean && before.grad == impl && before.absmax > 0 &&
                         mark.state == GradMark::kClean && mark.absmax == 0;
      if (before.state > GradMark::kClean && mark.state == GradMark::kClean) {
        // Same tensor, finite now. An Inf that became another number still makes the update wrong, so its mark stays
        // bad; an element that is zero now was handled.
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
    // Of clipped ones always the bound: it is known in each step, so that a growth of it is one of the gradients.
    if (const double most = mark.bound > 0 ? mark.bound : mark.absmax; most > verdict->grad_absmax) {
      verdict->grad_absmax = most;
      verdict->is_scaled = !mark.is_unscaled;
    }
  });
  l.counters.gradients_scanned += seen;
  // From here this step answers for gradients that the script asked for (autograd.grad).
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
  // Called again after the device part, which may fill in losses that were on the device.
  const auto look_at_losses = [&] {
    bad_loss = loss_set = false;
    for (const LossNote& note : l.losses) {
      if (!in_window(entry, note)) continue;
      bad_loss |= note.bad && !note.consumed;
      loss_set |= note.value != 0;
    }
  };
  look_at_losses();
  // If the step is rare anyway, the device's verdict is waited for: Python decides on complete facts.
  const bool rare = !ok || verdict->laundered != 0 || entry.written_bad || listeners().buffer_turned_nan() ||
                    (second_run_under_way() && !listeners().is_jumped_over(entry)) || any_dropped_check() ||
                    units_run_again() || is_target(entry, entry.step) ||
                    (l.target_written && entry.step > 0 && is_target(entry, entry.step - 1));
  if (device != nullptr) {
    settle_device(entry, verdict, may_be_late && !rare && !bad_loss && verdict->bad_gradients == 0);
    look_at_losses();
    verdict->scaler_skip = verdict->scaler_skip && !bad_loss;
  }
  // All gradients exactly zero with a loss that is not: training has stopped (saturation, underflow). Reported once
  // per optimizer.
  const bool zero = verdict->all_zero =
      loss_set && verdict->bad_gradients == 0 && verdict->grad_absmax == 0 && !verdict->late && !verdict->unknown;
  const bool news = zero && entry.had_gradient && !entry.vanished;
  entry.vanished |= news;
  entry.had_gradient |= verdict->grad_absmax > 0;
  verdict->needs_cold = rare || bad_loss || verdict->bad_gradients != 0 || entry.norm_overflow || news ||
                        entry.drops.unreported > entry.dropped;
  return ok;
}

// Ends the window of an optimizer, whether its step was applied or not. `predicted` is learned from it. Capacity of
// marks and losses is kept, so the next window allocates nothing.
// Losses are erased only up to the start of the oldest open window: an optimizer that steps more rarely (a GAN's)
// still has to see those of its own window.
void close_window(OptimizerEntry& entry) {
  const Metered verdict(Piece::kVerdict);
  Live& l = live();
  ++l.windows_closed;
  if (!units_run_again()) listeners().closed();
  end_stream_window(entry);
  if (entry.dropped == 0) entry.predicted = entry.backwards;  // a window that was dropped says nothing of the next
  entry.backwards = 0;
  entry.norm_overflow = false;
  entry.clip_norm = entry.clip_max = 0;
  entry.is_unscaled = false;
  entry.dropped = entry.drops.unreported = 0;
  entry.bad_since = 0;
  entry.window_start = l.next_serial;
  entry.touched = 0;
  std::fill(entry.marks.begin(), entry.marks.end(), GradMark());
  std::uint64_t oldest = l.next_serial;
  for (const auto& e : l.optimizers) {
    if (is_alive(*e)) oldest = std::min(oldest, e->window_start);
  }
  // A finite loss of long ago is of no use: an optimizer that never steps must not make the list grow.
  constexpr std::uint64_t kFiniteNotes = 256;
  std::erase_if(l.losses, [&](const LossNote& n) {
    return n.serial <= oldest || (!n.bad && n.serial + kFiniteNotes < l.next_serial);
  });
  observe::Tracer::get().set_micro_batch(0);
}

record::StepRecord push_now(record::StepRecord step) noexcept {
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  step.time_ns = static_cast<std::uint64_t>(now.count());
  live().ring->push(step);
  return step;
}

// One write of 64 bytes into the ring, without a lock or a system call. Steps that run a second time are not steps of
// the training.
std::optional<record::StepRecord> record_step(const OptimizerEntry& entry, const WindowVerdict& verdict, double lr,
                                              std::uint32_t flags) noexcept {
  if (!live().ring || second_run_under_way() || units_run_again()) return std::nullopt;
  const Metered ring(Piece::kRing);
  double loss = 0;
  for (const LossNote& note : live().losses) {
    if (note.serial > entry.window_start) loss = note.value;
  }
  if (verdict.is_scaled && live().loss_scale > 0) flags |= record::kStepGradientScaled;
  return push_now(
      {entry.step, entry.ordinal, flags | record::loss_scale_flags(live().loss_scale), loss, verdict.grad_absmax, lr});
}

// Called with the step count already incremented, so that the trace begins when the step before the wanted one is
// applied: its window starts there.
bool begin_trace_of_target(const OptimizerEntry& entry) {
  const Live& l = live();
  if (!l.target_set || entry.ordinal != l.target_ordinal || entry.step != l.target_first) return false;
  if (observe::Tracer& tracer = observe::Tracer::get(); !tracer.on()) {
    observe::unseen_writes().on = true;
    trace_own_training();
    tracer.start(&places());
    if (l.tape_when_armed != 0) observe::TapeRecorder::get().start(l.tape_when_armed, &places());
  }
  return true;
}

// Lets a good step through. The order matters: listeners see the window before it is closed (step_is_good, applied),
// and the record is written while its losses are known.
// `starts` is called here only if the step cannot be undone. Else the window has to end where finish_commit is called,
// because an undone step belongs to the window before.
bool commit_window(OptimizerEntry& entry, const WindowVerdict& verdict, double lr, bool may_hook) {
  const Metered rest(Piece::kVerdict);
  Live& l = live();
  listeners().step_is_good(entry);
  ++l.counters.steps;
  listeners().applied(entry);
  note_learned(entry, verdict.grad_absmax != 0 || verdict.late || verdict.unknown);
  if (!second_run_under_way() && !units_run_again()) {
    const bool is_zero = verdict.all_zero && entry.had_gradient;
    entry.zeroed = is_zero && verdict.zeroed && (entry.zero_steps == 0 || entry.zeroed);
    entry.zero_steps = is_zero ? entry.zero_steps + 1 : 0;
  }
  bool has_news = false;
  if (!verdict.late) {
    if (const auto step = record_step(entry, verdict, lr, record::kStepApplied))
      has_news = listeners().recorded(entry, *step, true);
  }
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
  // The trace of a healthy window is dropped, after the post-hook has read what the step wrote, if there is one.
  const bool clears = (l.trace_level || l.trace_first) && tracer.on() && !second_run_under_way();
  entry.clears_trace = clears && entry.looks_after && entry.armed_post;
  if (clears && !entry.clears_trace) listeners().trace_ended();
  close_window(entry);
  if (taped) listeners().next_begins(entry, may_hook && (!entry.in_torch || entry.armed_post));
  entry.snapshot_pending = undoable;
  if (!undoable) listeners().starts(entry);
  return !has_news || listeners().reports_news(entry);
}

// After the step has run and what it wrote was read. The copy is dropped: from here the step is final.
bool finish_commit(OptimizerEntry& entry) {
  const bool ok = listeners().step_over();
  if (!entry.snapshot_pending) return ok;
  const SavedError raised;  // what follows runs Python code
  entry.snapshot_pending = false;
  const std::shared_ptr<UndoCopy> undo = entry.undo;  // code that runs as values die may give it up
  undo->forget();
  listeners().starts(entry);
  return ok;
}

}  // namespace finitude::bindings
