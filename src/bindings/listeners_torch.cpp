#include "bindings/listeners_torch.h"

#include "gate/hooks_torch.h"
#include "gate/listeners.h"
#include "pyhost/exception_barrier_torch.h"
#include "rewind/manual_updates_torch.h"
#include "rewind/optimizer_undo_torch.h"
#include "rewind/step_calls_torch.h"
#include "rewind/window_start_torch.h"
#include "standby/computed_dtype_torch.h"
#include "standby/last_step_torch.h"
#include "standby/step_reach_torch.h"
#include "standby/step_signals_torch.h"
#include "standby/step_store_torch.h"
#include "standby/tape_level_torch.h"
#include "standby/template_tape_torch.h"
#include "standby/verified_step_torch.h"

namespace finitude::bindings {

void connect_listeners() {
  guest_failed = &switch_off;
  Listeners& l = listeners();
  l.optimizer_made = &forget_window_by_hand;
  l.optimizer_gone = [](const OptimizerEntry& entry) {
    forget_window_start_of(entry);
    forget_signals_of(entry);
    forget_stored_passes_of(entry);
  };
  l.first_step_comes = &first_step_comes;
  l.engine_call = &backward_by_hand;
  l.loss_noted = [](std::uint64_t serial, const at::Tensor& root) {
    note_graph(serial, root);
    if (is_looking_at_reach()) look_at_casts(root);
  };
  l.records_losses = &tape_records_template;
  l.loss_given = &template_loss_given;
  l.backward_ended = &tape_backward_ended;
  l.clipped = &note_clipping;
  l.buffer_turned_nan = &buffer_turned_nan;
  l.is_jumped_over = &is_jumped_over;
  l.left_out = &note_left_out;
  l.recording_restarts = &tape_window_begins;
  l.before_apply = &copy_before_jump;
  l.step_is_good = &tape_step_is_good;
  l.applied = &note_applied;
  l.recorded = [](const OptimizerEntry& entry, const record::StepRecord& step, bool has_marks) {
    look_at_reach(entry);
    store_step(entry, step, has_marks);
    const bool warns = watch_signals(entry, step, has_marks);
    return verified_has_news() || warns;
  };
  l.reports_news = [](OptimizerEntry& entry) { return report_verified(entry) && warn(entry); };
  l.records_next = &tape_follows;
  l.trace_ended = &end_traced_window;
  l.keeps_trace = &keeps_last_step;
  l.closed = &forget_clipping;
  l.next_begins = &tape_step_begins;
  l.starts = &snapshot_window;
  l.step_over = &tape_step_ends;
  l.training_batch_given = &template_batch_given;
  l.start_lost = &forget_window_start;
  l.switched_off = [] {
    set_tape_level(0);
    set_reach_looks(false);
  };
}

}  // namespace finitude::bindings
