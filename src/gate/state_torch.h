// The gate's state: what has been seen of each optimizer in the window that is open now.
// Everything here is touched with the GIL held; nothing allocates in the steady state.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/immortal.h"
#include "gate/device_tickets.h"
#include "gate/loss_leaves_torch.h"
#include "gate/weight_sample_torch.h"
#include "observe/gradient_look_torch.h"
#include "pyhost/object_python.h"
#include "record/ring_posix.h"
#include "record/trace.h"

namespace finitude::bindings {

class UndoCopy;
struct DeviceGate;

using observe::GradMark;

// One root handed to an outermost backward, or to GradScaler.scale.
struct LossNote {
  std::uint64_t serial = 0;
  std::uint64_t thread = 0;  // that called backward
  double value = 0;          // of a one-element loss
  std::uint64_t sum = 0;     // checksum of its bytes
  bool bad = false, grad_bad = false, scaled = false, consumed = false, in_closure = false;
  std::vector<std::uint32_t> bad_at;  // ordinals of optimizers that had a bad gradient right after that backward
  std::uint32_t second_run_of = 0;    // noted while the window of this optimizer ran again (ordinal + 1): nobody else's
  std::uint32_t micro_batch = 0;
  LossLeaves leaves;       // bad losses only: the parameters below it
  bool on_device = false;  // whose it is is not kept then
  DeviceTickets device;
};

// Windows in a row whose gradients the script has dropped because they are not finite: see dropped_torch.h.
struct DropRow {
  std::uint32_t length = 0;
  std::uint32_t unreported = 0;  // of the window that is open: not counted in the report yet
  std::uint64_t last = 0;        // the backward that found the last one
  std::uint64_t applied_at = 0;  // the last backward before the last step that was applied
  bool is_norm = false;          // the last one had finite gradients, whose norm overflowed
  bool is_reported = false;
};

// How far an optimizer has come: what a second run of another one's window must leave as it was.
struct WindowState {
  std::uint64_t step = 0;  // calls judged so far
  std::uint32_t backwards = 0, predicted = 0;
  bool clip_proves = false;        // the last window's clip norm proved the gradients finite
  double clip_norm = 0;            // 2-norm of the gradients of this window before they were clipped; 0: not known
  double clip_max = 0;             // what it was clipped to
  bool is_unscaled = false;        // a GradScaler has unscaled the gradients of this window
  std::uint32_t dropped = 0;       // how often bad gradients of this window were replaced before its last backward
  bool laundered = false;          // gradients that were bad after backward are finite or gone now
  bool norm_overflow = false;      // a clip norm overflowed though every element was finite
  record::Frame norm_place;        // and the user's line that clipped
  std::uint64_t window_start = 0;  // serial of the first loss note of this window
  std::uint64_t touched = 0;  // serial of the first loss of this window whose backward made gradients of this optimizer
  std::uint64_t bad_since = 0;    // the loss after whose backward the first of `marks` was found to be bad
  bool stands_elsewhere = false;  // what came with them still stood at another optimizer after the last backward
  // Gradients that an alarm reported, as they were then: a skipped step gives them back, and they are no news.
  struct Reported {
    std::uint32_t index = 0;                        // of the parameter
    c10::weak_intrusive_ptr<c10::TensorImpl> grad;  // its address is not used again while this is here
    std::uint32_t version = 0, number = 0;
    bool explained = false;  // see GradMark
  };
  std::vector<Reported> reported;
  double lr = 0;
  std::vector<GradMark> marks;  // by parameter index, groups in order
  struct Probe {
    const c10::TensorImpl* grad = nullptr;
    std::uint32_t version = 0;
  };
  static constexpr std::uint32_t kProbes = 8;
  Probe probes[kProbes];       // gradients of the first parameters after the last backward
  bool begins_anew = false;    // the backward under way: they were zeroed or replaced since
  std::uint64_t slice_at = 0;  // where the next slice of the parameters to look at begins
  DropRow drops;
  bool had_gradient = false;     // some window had a gradient that was not zero
  bool vanished = false;         // now all are exactly zero, and the loss is not; reported once
  std::uint64_t zero_steps = 0;  // applied in a row, up to now, in which they were
  bool zeroed = false;           // of these, in each of them the script set some to zero after backward
  bool written_bad = false;      // a slice held a value that is not finite
};

// A parameter as one pass of slices over all of them finds it.
struct ReadWeight {
  float absmax = -1;         // largest magnitude; negative: it cannot be read, or is no result of a step
  float state_absmax = -1;   // the largest magnitude of the optimizer's state of its shape; negative: there is none
  float update = -1;         // what one step changed, relative (WeightSample); negative: not known
  SmallShares small;         // of its gradient
  bool has_changed = true;   // its sample is another one than in the pass before
  std::uint64_t sample = 0;  // a checksum of a few bytes of it
};

struct OptimizerEntry : WindowState {
  PyObject* self = nullptr;  // borrowed; `ref` shows whether it still lives
  Object ref;                // a weak reference without a callback
  std::string class_name;
  std::uint32_t ordinal = 0;  // in order of first step
  std::uint64_t thread = 0;   // that took its last step
  std::uint64_t made_at = 0;  // serial of the last loss note as it was made; 0: it was there before its first step
  bool in_torch = false;  // its step is one of torch.optim's: it evaluates a closure first, skips what has no gradient
  bool risky = false;     // its own arithmetic may overflow: what it wrote is scanned after every step
  bool first_done = false;
  int in_step = 0;
  bool is_inner = false;  // stepped by another optimizer, which is judged in its place
  bool veto_now = false, armed_post = false, armed_restore = false;
  bool looks_after = false;   // what the step under way writes is looked at when it is over
  bool clears_trace = false;  // when nothing bad is found there
  // A step that was given a closure, of a class outside torch.optim: under way; to be left by the exception that the
  // closure raises; and the largest gradient of its first evaluation.
  bool closure_open = false, is_leaving = false;
  double closure_absmax = 0;
  std::vector<at::Tensor> taken;  // gradients taken away by a veto, by parameter index
  std::uint64_t elements = 0;     // of all parameters together
  // What the slices of the pass under way (post_step_scan_torch.h) have found of each parameter, in order; whole once a
  // pass has ended, and until the next one begins.
  std::vector<ReadWeight> weights;
  std::uint32_t passes = 0;  // that have ended
  // Of the parameters whose part of the pass began with step `sampled_at`; and of those of the step being judged.
  std::vector<WeightSample> samples, next_samples;
  std::uint64_t sampled_at = 0;
  bool snapshot_pending = false;  // the window before stays open until what the step wrote is seen to be healthy
  std::shared_ptr<UndoCopy> undo;
  bool undo_held = false;              // `undo` was taken before the step for its closure, whatever the budget
  std::shared_ptr<DeviceGate> device;  // where a parameter lies on a GPU
};

struct Counters {
  std::uint64_t steps = 0, backward_calls = 0, gradients_scanned = 0, scaler_skips = 0, handled_by_script = 0,
                python_calls = 0, post_hooks = 0, vetoes = 0, losses = 0;
};

struct Live {
  bool on = false;
  Object cold;  // finitude.session.native_callbacks: the Python side of rare events
  Object original_backward, original_clip, original_clip_value, original_scale, original_scaler_step, original_unscale;
  Counters counters;
  std::vector<std::unique_ptr<OptimizerEntry>> optimizers;
  std::uint32_t next_ordinal = 0;
  std::uint32_t gone_before = 0;  // of these: optimizers that were no more when this recorder began
  // Who steps a parameter, and its index there; more than one entry where optimizers share it.
  std::unordered_multimap<const c10::TensorImpl*, std::pair<OptimizerEntry*, std::uint32_t>> owner;
  std::vector<LossNote> losses;  // of the open windows, bounded
  std::uint64_t next_serial = 0;
  std::uint64_t bad_graph = 0;       // a sign of the graph of the last bad loss
  bool scaled_pending = false;       // a scaled loss waits for its backward
  float loss_scale = 0;              // of the GradScaler whose step is under way; 0: none, or on a device
  bool keeps_window_start = true;    // false: a bad step is vetoed but cannot be run again in place (bench/ only)
  bool gradients_are_sinks = false;  // to the tracer, as backward leaves them: the script is going to drop them
  bool wake_on_backward = false;     // the Python side asked for the next outermost backward
  // A second process: the step it is to explain. Traced from when the step before the first is applied.
  bool target_set = false, target_written = false, trace_level = false;
  bool trace_first = false;         // until the next step is over (see first_step.py)
  std::size_t tape_when_armed = 0;  // 0: no tape; else its limit in bytes
  std::uint32_t target_ordinal = 0;
  std::uint64_t target_first = 0, target_step = 0;  // traced from the first; steps between are looked at when written
  int devices = 0;                                  // optimizers with a DeviceGate
  std::uint64_t backward_serial = 0;                // of the last outermost backward
  std::uint64_t left_out_serial = 0;  // the backward inside which a step was skipped: so are those that follow in it
  int steps_open = 0;                 // steps of classes outside torch.optim under way
  std::uint64_t step_serial = 0;      // the last backward before the innermost of them
  int closure_depth = 0;
  std::uint64_t windows_closed = 0;          // of any optimizer, so far
  std::uint64_t step_thread = 0;             // whose step was the last, as Python numbers its threads
  std::vector<std::uint64_t> threads;        // all whose step it ever was; bounded
  bool threads_take_turns = false;           // one stepped after another that had stepped after it: both train
  std::unique_ptr<record::RingWriter> ring;  // the last steps; survives the process where it has a file
};

inline base::Immortal<Live> the_live;
inline Live& live() { return *the_live; }

// Calls of the engine that this thread is in, nested.
extern constinit thread_local int engine_depth;
// Is this thread below a call of the engine? Another one's is its own affair; a thread of the engine's works for a
// call.
bool in_backward() noexcept;
// A step is about to be applied by this thread.
void note_thread(OptimizerEntry& entry);
// As Python numbers it; never given twice. With the GIL held.
std::uint64_t this_thread() noexcept;
// Do several threads train, each a model of its own, and is this one of them? With the GIL held.
bool has_own_training() noexcept;
// Of the step that is traced from now on: the operators of this thread's training only, where it has one of its own.
// With the GIL held, before the tracer is started.
void trace_own_training() noexcept;
// Not by another thread, where this one has a training of its own. What another thread trains may be within a step.
// torch gives the GIL back while it frees a gradient that `.grad` still names, so that a read of that gradient is a
// read of freed memory. With the GIL held.
bool is_trained_here(const OptimizerEntry& entry) noexcept;

OptimizerEntry* find_entry(PyObject* optimizer) noexcept;
// Has the program not let go of the optimizer?
inline bool is_alive(const OptimizerEntry& entry) noexcept {
  return PyWeakref_GetObject(entry.ref.get()) == entry.self;
}
// Is it still a watched one? Entries of optimizers that are gone are freed when the next one is met.
bool is_known(const OptimizerEntry& entry) noexcept;
OptimizerEntry* new_entry(PyObject* optimizer);
// Calls finitude.session.native_callbacks.<name>(a, ...). Empty with a Python error set.
Object call_cold(const char* name, PyObject* a, PyObject* b = nullptr, PyObject* c = nullptr);

}  // namespace finitude::bindings
