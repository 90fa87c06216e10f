#include "standby/tape_level_torch.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/immortal.h"
#include "gate/second_run.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/places_torch.h"
#include "rewind/snapshot_torch.h"
#include "standby/template_tape_torch.h"
#include "standby/verified_step_torch.h"

namespace finitude::bindings {
namespace {

constexpr std::uint32_t kMaxCarried = 16;  // steps of other optimizers that one tape may contain

// The state of --level tape and of --tape-every. Tracer and recorder are one for the process and have other users as
// well: they work for this one as long as the tracer takes a sketch (is_recording).
struct TapeLevel {
  std::size_t max_bytes = 0;        // 0: off
  std::uint64_t since = 0;          // the last loss that was noted before the tape began
  std::uint32_t carried = 0;        // steps that were applied since
  bool lost = false;                // switched off because of a device
  std::uint64_t every = 0;          // 0: each step is recorded, and there are no templates
  bool verifies = false;            // what is recorded is verified, and becomes no template
  std::uint64_t steps = 0;          // that were applied
  std::size_t wanted = 0;           // steps of this round that are yet to be recorded: one of each optimizer
  std::set<std::uint32_t> stepped;  // ordinals of the optimizers that have stepped since the last round, of --verify
  bool step_under_way = false;      // and is no part of a window that is recorded
  bool records_next = false;        // the window after the step that is about to be applied is recorded
  bool verifies_step = false;       // that step is to be recorded by itself, as its window was verified
  std::optional<std::uint32_t> recorded_step;  // ordinal of the optimizer whose step is being recorded so
  bool is_over = false;  // a step inside backward was applied: the next tape begins when that ends
  RngState generators;   // as the tape began with them
};

base::Immortal<TapeLevel> the_level;
TapeLevel& level() { return *the_level; }

// A second run has a trace of its own, which must not be restarted.
bool others_run() { return second_run_under_way() || units_run_again(); }

// Gradients of another optimizer were made in a window of its own that is still open. Its tape must then not end here:
// it would lack the backward that made them.
bool other_window_open(const OptimizerEntry& entry) {
  for (const auto& other : live().optimizers) {
    if (other.get() != &entry && other->touched != 0 && !other->is_inner && is_alive(*other)) return true;
  }
  return false;
}

bool is_recording() {
  return observe::Tracer::get().on() && observe::Tracer::get().sketches() && observe::TapeRecorder::get().on();
}

// Both or none: the recorder refers to operators of the tracer.
void pause(bool on) {
  observe::TapeRecorder::get().pause(on);
  observe::Tracer::get().pause(on);
}

}  // namespace

bool tape_records_template() noexcept {
  return level().every != 0 && is_recording() && !level().step_under_way && !others_run();
}

// `lost` is reset only by a new limit, so that the reason remains after begin_tape() has switched the level off.
void set_tape_level(std::size_t max_bytes, std::uint64_t every, bool verifies) noexcept {
  level().max_bytes = max_bytes;
  level().every = every;
  level().verifies = verifies && every != 0;
  level().steps = level().wanted = 0;
  if (max_bytes != 0) level().lost = false;
  if (max_bytes != 0) return;
  tape_level_rests();
  drop_templates();
}

// Does nothing if the tracer runs for another user: its trace would be lost.
void tape_level_rests() noexcept {
  level().step_under_way = level().is_over = level().verifies_step = false;
  level().recorded_step.reset();
  observe::Tracer& tracer = observe::Tracer::get();
  if (!tracer.sketches() || !tracer.on()) return;
  observe::TapeRecorder::get().stop();
  observe::TapeRecorder::get().keep_digests(false);
  observe::TapeRecorder::get().clear();
  tracer.stop();
  tracer.clear();
}

namespace {

void begin_tape() {
  TapeLevel& l = level();
  if (l.max_bytes == 0 || others_run()) return;
  // What runs on a device is not recorded. One optimizer with parameters there switches the level off for good.
  if (live().devices != 0) {
    l.lost = true;
    return set_tape_level(0);
  }
  if (!live().on) return;
  if (in_backward()) {
    // A tape cannot begin in the middle of a backward: its operators would read values that no operator on it made.
    l.is_over = true;
    return;
  }
  observe::Tracer& tracer = observe::Tracer::get();
  observe::TapeRecorder& recorder = observe::TapeRecorder::get();
  if (tracer.on() && !tracer.sketches()) return;
  l.step_under_way = l.is_over = l.verifies_step = false;
  l.recorded_step.reset();
  l.carried = 0;
  // Losses are known by serials: those after this one belong to the tape.
  l.since = live().next_serial;
  take_rng(&l.generators);
  if (l.verifies) verified_step_begins();  // before anything is recorded
  pause(false);
  tracer.clear();
  tracer.start(&places(), /*sketch=*/true);  // before the recorder, which asks it for the op that has begun
  if (recorder.on())
    recorder.restart();
  else
    recorder.start(l.max_bytes, &places(), /*every_step=*/true);
  if (l.every != 0) template_begins();
}

// What the optimizer's own operators read and make, of a step whose window was verified. Nothing else is recorded then.
void begin_step(const OptimizerEntry& entry) {
  TapeLevel& l = level();
  observe::Tracer& tracer = observe::Tracer::get();
  if (tracer.on() || observe::TapeRecorder::get().on()) return;
  l.recorded_step = entry.ordinal;
  verified_optimizer_begins();
  pause(false);
  tracer.clear();
  tracer.start(&places(), /*sketch=*/true);  // before the recorder, as in begin_tape()
  observe::TapeRecorder::get().start(l.max_bytes, &places(), /*every_step=*/true);
}

// The program's step raised: it has no end.
void forget_step() {
  if (!level().recorded_step) return;
  tape_level_rests();
}

OptimizerEntry* with_ordinal(std::uint32_t ordinal) {
  for (const auto& entry : live().optimizers) {
    if (entry->ordinal == ordinal && is_alive(*entry)) return entry.get();
  }
  return nullptr;
}

}  // namespace

void tape_window_begins() {
  if (level().every == 0 || is_recording())
    begin_tape();  // of a round of templates the next step that is applied is the next
}

// Before the step is applied, as parameters and generators still are those of the recorded step.
void tape_step_is_good(const OptimizerEntry& entry) {
  TapeLevel& l = level();
  forget_step();
  l.verifies_step = false;
  if (!tape_records_template()) return;
  if (l.verifies)
    l.verifies_step = verify_recorded_step(entry, l.since);
  else
    keep_template(entry, l.since);
  if (l.wanted > 0) --l.wanted;
}

// A round begins with each N-th step and ends when each optimizer has its template, or a newer one. Dead optimizers are
// not counted, as they would never take theirs.
bool tape_follows() noexcept {
  constexpr std::size_t kMaxOfRound = 8;
  TapeLevel& l = level();
  l.records_next = false;
  if (l.max_bytes == 0 || others_run()) return false;
  if (l.every == 0) return l.records_next = true;
  if (++l.steps % l.every == 1 % l.every) {  // the second step is the first: much is made in the first of all
    l.wanted = l.stepped.size();
    l.stepped.clear();
    // A template is of use at any later step of its optimizer; a step that never comes is not waited for to be
    // verified.
    for (const auto& entry : live().optimizers) l.wanted += !l.verifies && is_alive(*entry);
    l.wanted = std::clamp<std::size_t>(l.wanted, 1, kMaxOfRound);
  }
  l.records_next = l.wanted > 0;
  return l.records_next || l.verifies_step;
}

void tape_step_begins(const OptimizerEntry& entry, bool has_end) {
  TapeLevel& l = level();
  const bool verifies_step = std::exchange(l.verifies_step, false);
  if (l.max_bytes == 0 || others_run()) return;
  if (l.verifies && l.records_next) l.stepped.insert(entry.ordinal);
  if (verifies_step && has_end && !in_backward()) {
    l.step_under_way = true;
    begin_step(entry);
  } else if (!l.records_next) {
    return;
  } else if (in_backward()) {
    l.is_over = true;  // what follows in this backward belongs to the same step
  } else if (l.every == 0 && is_recording() && other_window_open(entry) && l.carried < kMaxCarried) {
    // The bound keeps a tape from growing without end where the other optimizer never steps.
    ++l.carried;
  } else if (has_end) {
    l.step_under_way = true;
    // The optimizer's own operators are not recorded. With templates keep_template() has ended the recording already.
    if (l.every == 0) pause(true);
  } else {
    begin_tape();
  }
}

bool tape_step_ends() {
  TapeLevel& l = level();
  if (!l.step_under_way) return true;
  OptimizerEntry* const entry = l.recorded_step ? with_ordinal(*l.recorded_step) : nullptr;
  l.recorded_step.reset();
  l.step_under_way = false;
  if (entry != nullptr) verify_optimizer_step(*entry);
  if (l.records_next) begin_tape();
  return entry == nullptr || !verified_has_news() || report_verified(*entry);
}

void tape_backward_ended() {
  if (level().is_over) begin_tape();
}

bool tape_level_lost() noexcept { return level().lost; }

const RngState& tape_generators() noexcept { return level().generators; }

// A tape that began in the middle of this optimizer's window lacks what came before, gradients of an earlier backward
// above all.
std::string tape_level_lacks(PyObject* optimizer) {
  const OptimizerEntry* entry = find_entry(optimizer);
  if (level().max_bytes == 0) return level().lost ? "what runs on a device is not recorded" : "nothing was recorded";
  if (entry == nullptr || !is_recording() || level().step_under_way) return "the step was not recorded";
  if (entry->touched != 0 && entry->touched <= level().since)
    return "another optimizer has stepped since this window began";
  return "";
}

}  // namespace finitude::bindings
