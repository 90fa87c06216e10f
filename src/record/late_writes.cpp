#include "record/late_writes.h"

#include <algorithm>

#include "record/exchange.h"

namespace finitude::record {
namespace {

bool readable(const TensorUse& use) { return use.storage != kNone && use.begin < use.end; }

// Bytes that the op has read and does not write: handed on as they are.
bool hands_on(const Op& op, const TensorUse& output) {
  if (op.is_view) return true;
  return std::ranges::any_of(op.inputs, [&](const TensorUse& in) {
    return in.storage == output.storage && in.begin == output.begin && in.end == output.end && !in.written;
  });
}

bool same_bytes(const TensorUse& a, const TensorUse& b) {
  return a.storage == b.storage && a.begin == b.begin && a.end == b.end;
}

// It is there to be written, and not read: "output..." of their schemas, and all that recv_ is given.
bool only_written(const Op& op, const TensorUse& use) {
  return use.arg.starts_with("out") || op.name.starts_with("c10d::recv");
}

void not_yet_written(TensorUse& use) {
  use.health.nan = use.health.pos_inf = use.health.neg_inf = 0;
  use.first_bad = -1;
  use.bad_rows.clear();
}

// The counts of the values that came are those of another time than the counts of zeros and subnormals: together they
// are never more than there are values, which every reader of statistics takes for granted.
void keep_within_total(sense::Health& h) {
  if (h.numel == 0) return;
  h.nan = std::min(h.nan, h.numel);
  h.pos_inf = std::min(h.pos_inf, h.numel - h.nan);
  h.neg_inf = std::min(h.neg_inf, h.numel - h.nan - h.pos_inf);
  h.zero = std::min(h.zero, h.finite());
  h.subnormal = std::min(h.subnormal, h.finite() - h.zero);
}

bool has_no_caller(const Op& op) { return op.stack == kNone && op.node == kNone && !op.is_node; }

// What a wait hands on was written by the call that it waited for: to the wait it was given, however late it came.
void given_as_handed_on(Op& wait) {
  for (TensorUse& in : wait.inputs) {
    for (const TensorUse& out : wait.outputs) {
      if (!same_bytes(in, out)) continue;
      in.health = out.health;
      in.first_bad = out.first_bad;
      in.bad_rows = out.bad_rows;
    }
  }
}

// What they are given to write into holds whatever lay there before, bad values of an earlier step perhaps. Where it is
// as it was, the call is not over: what comes is seen by the caller that reads it next.
void leave_out_leftovers(Op& op) {
  for (TensorUse& in : op.inputs) {
    if (in.health.ok() || !readable(in) || !only_written(op, in)) continue;
    for (TensorUse& out : op.outputs) {
      const bool as_before = out.health.nan == in.health.nan && out.health.pos_inf == in.health.pos_inf &&
                             out.health.neg_inf == in.health.neg_inf && out.first_bad == in.first_bad;
      if (same_bytes(in, out) && as_before) not_yet_written(out);
    }
    not_yet_written(in);
  }
}

}  // namespace

bool LateWrites::is_open(const TensorUse& use) const {
  const auto at = open_.find(use.storage);
  return at != open_.end() && std::ranges::any_of(at->second, [&](const Open& open) {
           return open.begin == use.begin && open.end == use.end;
         });
}

// Is the op a part of what a backend does for a call that has not ended?
bool LateWrites::is_inside(const std::vector<Op>& ops, const Op& op) const {
  if (running_.empty()) return false;
  for (OpId at = op.parent; at < ops.size(); at = ops[at].parent < at ? ops[at].parent : kNone) {
    if (is_backend_call(ops[at].name)) return true;
  }
  return false;
}

// Storages are numbered as they are seen.
void LateWrites::note_first(const std::vector<Op>& ops, const Op& op, const std::vector<TensorUse>& uses) {
  StorageId end = first_unseen_;
  for (const TensorUse& use : uses) {
    if (use.storage == kNone || use.storage < first_unseen_) continue;
    end = std::max(end, use.storage + 1);
    if (is_inside(ops, op))
      of_backend_.insert(use.storage);
    else if (has_no_caller(op))
      of_nobody_.insert(use.storage);
  }
  first_unseen_ = end;
}

// Does it lie in what a collective has been given, one that may not be over?
bool LateWrites::is_exchanged(const std::vector<Op>& ops, const TensorUse& use) const {
  const auto within = [&](const auto& of) { return of.begin <= use.begin && use.end <= of.end; };
  const auto at = open_.find(use.storage);
  if (at != open_.end() && std::ranges::any_of(at->second, within)) return true;
  return std::ranges::any_of(running_, [&](OpId id) {
    return std::ranges::any_of(ops[id].inputs,
                               [&](const TensorUse& in) { return in.storage == use.storage && within(in); });
  });
}

// It is inside of the call. Or it copies, in a thread of the backend's or when the call is waited for, a buffer of the
// backend's into what the call was given. The operators with which DDP fills its buckets have no caller either, but
// read gradients.
bool LateWrites::is_of_backend(const std::vector<Op>& ops, const Op& op) const {
  if (exchanges_values(op.name) || op.is_node) return false;
  if (is_inside(ops, op)) return true;
  if (op.is_view || (of_backend_.empty() && of_nobody_.empty())) return false;
  bool reads = false;
  for (const TensorUse& in : op.inputs) {
    if (in.written || !readable(in)) continue;
    if (!of_backend_.contains(in.storage) && !(has_no_caller(op) && of_nobody_.contains(in.storage))) return false;
    reads = true;
  }
  return reads && !op.outputs.empty() &&
         std::ranges::all_of(op.outputs, [&](const TensorUse& out) { return is_exchanged(ops, out); });
}

void LateWrites::began(std::vector<Op>& ops, OpId id) {
  note_first(ops, ops[id], ops[id].inputs);
  if (exchanges_values(ops[id].name) && !only_waits(ops[id].name)) running_.push_back(id);
  if (open_.empty()) return;
  if (only_waits(ops[id].name)) {  // reads nothing: what lies there may still be from before the call that it is about
    for (TensorUse& in : ops[id].inputs) {
      if (is_open(in)) not_yet_written(in);
    }
    return;
  }
  const std::vector<TensorUse> inputs = ops[id].inputs;  // looked_at() writes into ops
  for (const TensorUse& in : inputs) looked_at(ops, in);
}

void LateWrites::looked_at(std::vector<Op>& ops, const TensorUse& use, bool after_wait) {
  if ((use.health.ok() && !after_wait) || !readable(use)) return;
  const auto at = open_.find(use.storage);
  if (at == open_.end()) return;
  for (Open& open : at->second) {
    if (use.begin < open.begin || use.end > open.end) continue;  // the bad ones may be those of others
    Op& op = ops[open.op];
    if (open.output == kNone) {
      if (use.health.ok()) continue;
      open.output = static_cast<std::uint32_t>(op.outputs.size());
      op.outputs.push_back(op.inputs[open.input]);
    }
    TensorUse& out = op.outputs[open.output];
    if (use.begin == out.begin && use.end == out.end && use.dtype == out.dtype) {
      out.health = use.health;
      out.first_bad = use.shape == out.shape ? use.first_bad : -1;
      out.bad_rows = use.shape == out.shape ? use.bad_rows : std::vector<std::int64_t>{};
    } else {  // a part of it: at least as many as are in this one
      out.health.nan = std::max(out.health.nan, use.health.nan);
      out.health.pos_inf = std::max(out.health.pos_inf, use.health.pos_inf);
      out.health.neg_inf = std::max(out.health.neg_inf, use.health.neg_inf);
      keep_within_total(out.health);
    }
  }
}

void LateWrites::written(OpId by, const TensorUse& use) {
  const auto at = open_.find(use.storage);
  if (at == open_.end()) return;
  std::erase_if(at->second,
                [&](const Open& open) { return open.op < by && use.begin < open.end && open.begin < use.end; });
  if (at->second.empty()) open_.erase(at);
}

void LateWrites::open(const Op& op, OpId id, const TensorUse& use, std::uint32_t input, std::uint32_t output) {
  if (!readable(use)) return;
  // An op that called the collective may have ended before what that writes was there: the bad values are from before
  // then.
  const bool unsure = is_open(use);
  written(id, use);
  if (op.failed || (!use.health.ok() && !unsure)) return;
  open_[use.storage].push_back({id, use.begin, use.end, input, output});
}

void LateWrites::ended(std::vector<Op>& ops, OpId id) {
  const Op& op = ops[id];
  note_first(ops, op, op.outputs);
  std::erase(running_, id);
  if (is_of_backend(ops, op)) {
    const std::vector<TensorUse> outputs = std::move(ops[id].outputs);
    ops[id].outputs.clear();
    ops[id].inputs.clear();
    for (const TensorUse& out : outputs) looked_at(ops, out);
    return;
  }
  const bool waits = only_waits(op.name);
  if (waits) given_as_handed_on(ops[id]);
  if (exchanges_values(op.name) && !waits) {
    leave_out_leftovers(ops[id]);
    // Their schemas do not say which of their tensors they write: c10d::recv_ writes what it is given.
    for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
      const TensorUse& in = op.inputs[i];
      if (std::ranges::none_of(op.outputs, [&](const TensorUse& out) { return same_bytes(in, out); }))
        open(op, id, in, i, kNone);
    }
    for (std::uint32_t i = 0; i < op.outputs.size(); ++i) open(op, id, op.outputs[i], kNone, i);
    return;
  }
  if (open_.empty()) return;
  // One that began before the collective had it called: what it hands over is what the collective left.
  const std::vector<TensorUse> outputs = op.outputs;  // looked_at() writes into ops
  for (const TensorUse& out : outputs) {
    if (!hands_on(op, out)) written(id, out);
    looked_at(ops, out, waits);
  }
  for (const TensorUse& in : op.inputs) {
    if (in.written) written(id, in);
  }
}

}  // namespace finitude::record
