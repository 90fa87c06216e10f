#include "rewind/optimizer_undo_torch.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <unordered_set>
#include <utility>

#include "base/immortal.h"
#include "base/thread_time.h"
#include "gate/post_step_scan_torch.h"
#include "gate/second_run.h"
#include "pyhost/meter.h"
#include "pyhost/torch_compat.h"

namespace finitude::bindings {
namespace {

using Clock = std::chrono::steady_clock;

// The steps of one optimizer, by their serials.
struct Past {
  OptimizerEntry* entry = nullptr;
  std::uint64_t last = 0;
  std::uint64_t left_out = 0;                   // the last of those that were not applied, by a count of their own
  std::uint64_t copied = 0, before_copied = 0;  // the step that the copy is from before, and the one before that
  bool taken = false;                           // the copy is that of the step about to be applied
  UndoCopy copy;
};

// The state of an optimizer as the first run left it, while a second run takes its steps once more: the gate's
// counters, and in `now` what the optimizer owns.
struct Over {
  Past* past;
  std::uint64_t step, slice_at;
  double lr;
  bool written_bad;
  UndoCopy now;
};

// A loss, weakly: the check for old nodes must not keep the graph, and with it all activations, alive.
struct Graph {
  std::uint64_t note;
  WeakNodeRef root;
};

// `pasts` and `over` own their elements by pointer, as elements of `over` point to those of `pasts`. As long as `over`
// is not empty, a second run is under way and no element of `pasts` may be removed before its `over`.
struct Jumps {
  std::vector<Graph> graphs;
  std::size_t budget = 0;
  double share = 0;
  std::uint64_t serial = 0, left_out = 0;
  const OptimizerEntry* last = nullptr;
  std::vector<std::unique_ptr<Past>> pasts;
  std::vector<std::unique_ptr<Over>> over;
  std::string refused;  // why copies are no longer taken
  Clock::time_point began;
  Clock::duration spent{};
  std::uint64_t copies = 0;
};

base::Immortal<Jumps> the_jumps;
Jumps& jumps() { return *the_jumps; }

Past* past_of(const OptimizerEntry& entry) {
  for (const auto& past : jumps().pasts) {
    if (past->entry == &entry) return past.get();
  }
  return nullptr;
}

Past& past_for(OptimizerEntry& entry) {
  if (Past* past = past_of(entry)) return *past;
  jumps().pasts.push_back(std::make_unique<Past>());
  jumps().pasts.back()->entry = &entry;
  return *jumps().pasts.back();
}

// Until the budget is set again: copies that were dropped once would be dropped again, and each attempt costs time. The
// reason goes to the report.
void refuse(std::string why) {
  Jumps& j = jumps();
  j.refused = std::move(why);
  for (const auto& past : j.pasts) {
    past->copy.forget(true);
    past->copied = 0;
  }
}

std::string megabytes(std::size_t size_bytes) { return std::to_string((size_bytes >> 20) + 1) + " MB"; }

// Bounds the time for copies to a share of all time, measured over the last kEnough copies at least: a single copy may
// have been slow because the system was busy.
void count_time(Clock::duration spent) {
  constexpr std::uint64_t kEnough = 16;
  Jumps& j = jumps();
  const auto now = Clock::now();
  if (j.copies++ == 0) j.began = now - spent;
  j.spent += spent;
  if (j.share <= 0 || j.copies < kEnough) return;
  const double share = std::chrono::duration<double>(j.spent) / std::chrono::duration<double>(now - j.began);
  if (share > j.share) {
    refuse("copies to go back to would take " + std::to_string(static_cast<int>(share * 100 + 1)) +
           " % of the time; --undo-mb keeps them whatever they cost");
    return;
  }
  j.copies = 0;
  j.spent = {};
}

}  // namespace

void set_jump_budget(std::size_t size_bytes, double share) noexcept {
  forget_jumps();
  Jumps& j = jumps();
  j.budget = size_bytes;
  j.share = share;
  j.refused.clear();
  j.copies = 0;
  j.spent = {};
}

const std::string& jump_refused() noexcept { return jumps().refused; }

std::uint64_t applied_serial() noexcept { return jumps().serial; }

void copy_before_jump(OptimizerEntry& entry) {
  Jumps& j = jumps();
  const Live& l = live();
  // A copy is needed only if another optimizer has stepped last. Several steps of one optimizer in a row are undone by
  // the copy from before the first. The first step of all has no window before it that could be run again.
  if (j.budget == 0 || !j.over.empty() || !j.refused.empty() || j.last == nullptr || j.last == &entry) return;
  // Optimizers that step inside backward are never run again in place.
  if (in_backward() || l.closure_depth > 0 || l.steps_open > 0 || entry.device || !l.keeps_window_start) return;
  Past* past = &past_for(entry);
  std::size_t used = 0;
  for (const auto& other : j.pasts) {
    if (other.get() != past) used += other->copy.size_bytes();
  }
  // The copies of --undo-mb come from the same budget.
  for (const auto& other : l.optimizers) used += other->undo ? other->undo->needed() : 0;
  const Metered undo(Piece::kUndo);
  const auto began = base::thread_time();
  const std::size_t room = j.budget - std::min(used, j.budget);
  past->taken = past->copy.take(entry.self, room, true);
  if (past->taken)
    count_time(base::thread_time() - began);
  else if (past->copy.needed() > room)
    refuse("copies to go back to take " + megabytes(used + past->copy.needed()) + "; --undo-mb gives them room");
}

void note_applied(OptimizerEntry& entry) {
  Jumps& j = jumps();
  note_thread(entry);
  // Steps of a second run repeat steps that are counted already.
  if (!j.over.empty()) return;
  std::erase_if(j.pasts, [](const auto& past) { return !is_alive(*past->entry); });
  ++j.serial;
  j.last = &entry;
  Past* past = &past_for(entry);
  // The copy becomes that of this step only now, when the step is counted as applied.
  if (std::exchange(past->taken, false) && past->copy.is_taken()) {
    past->before_copied = past->last;
    past->copied = j.serial;
  }
  past->last = j.serial;
}

void note_left_out(OptimizerEntry& entry) {
  if (!second_run_under_way()) past_for(entry).left_out = ++jumps().left_out;
}

std::uint64_t left_out_serial() noexcept { return jumps().left_out; }

std::vector<OptimizerEntry*> left_out_since(std::uint64_t since) {
  std::vector<OptimizerEntry*> entries;
  for (const auto& past : jumps().pasts) {
    if (past->left_out > since && is_alive(*past->entry)) entries.push_back(past->entry);
  }
  return entries;
}

std::vector<OptimizerEntry*> stepped_since(std::uint64_t since) {
  std::vector<Past*> found;
  for (const auto& past : jumps().pasts) {
    if (past->last > since && is_alive(*past->entry)) found.push_back(past.get());
  }
  // The last one first: where they share a parameter, it ends as the first one found it.
  std::sort(found.begin(), found.end(), [](const Past* a, const Past* b) { return a->copied > b->copied; });
  std::vector<OptimizerEntry*> entries;
  for (const Past* past : found) entries.push_back(past->entry);
  return entries;
}

std::string undo_obstacle(std::uint64_t since) {
  const Jumps& j = jumps();
  for (const OptimizerEntry* entry : stepped_since(since)) {
    const Past& past = *past_of(*entry);
    // The copy must be from before the first step after `since`: made at a step after it, with none of its steps in
    // between.
    if (past.copied > since && past.before_copied <= since && past.copy.is_taken()) continue;
    const std::string why = !j.refused.empty() ? j.refused
                            : j.budget == 0    ? "no copies to go back to are kept"
                            : past.copied == 0 ? "its step is not one that can be undone"
                                               : "only a later one of its steps could be undone";
    return entry->class_name + " stepped meanwhile; " + why;
  }
  return {};
}

// First copies of the present for all, then the changes: if one optimizer cannot be put back, the others return to the
// present, and false means that nothing has changed. The copies of the present have no limit, since without them the
// training could not continue as if nothing had happened.
bool begin_jump(std::uint64_t since) {
  Jumps& j = jumps();
  j.over.clear();
  for (OptimizerEntry* entry : stepped_since(since)) {
    auto over = std::make_unique<Over>();
    over->past = past_of(*entry);
    over->step = entry->step;
    over->slice_at = entry->slice_at;
    over->lr = entry->lr;
    over->written_bad = entry->written_bad;
    if (!over->now.take(entry->self, SIZE_MAX, true)) {
      j.over.clear();
      return false;
    }
    j.over.push_back(std::move(over));
  }
  for (const auto& over : j.over) {
    if (over->past->copy.put_back()) continue;
    for (const auto& other : j.over) other->now.put_back();
    j.over.clear();
    return false;
  }
  return true;
}

// Whatever the second run came to, the values of the first are put back: it is the first run that the program
// continues.
bool end_jump() {
  Jumps& j = jumps();
  bool same = true;
  for (const auto& over : j.over) {
    OptimizerEntry& entry = *over->past->entry;
    if (!is_alive(entry)) {
      same = false;
      continue;
    }
    same = over->now.has_same_values() && same;
    over->now.put_back();
    entry.step = over->step;
    entry.slice_at = over->slice_at;
    entry.lr = over->lr;
    entry.written_bad = over->written_bad;
    // The second run's step may have left this open; the start of the window is that of the first run.
    entry.snapshot_pending = false;
  }
  j.over.clear();
  return same;
}

bool is_jumped_over(const OptimizerEntry& entry) noexcept {
  for (const auto& over : jumps().over) {
    if (over->past->entry == &entry) return true;
  }
  return false;
}

void note_graph(std::uint64_t note, const at::Tensor& root) {
  constexpr std::size_t kMost = 512;
  Jumps& j = jumps();
  if (j.budget == 0 || live().optimizers.size() < 2 || !root.grad_fn()) return;
  if (j.graphs.size() >= kMost) j.graphs.erase(j.graphs.begin(), j.graphs.begin() + kMost / 2);
  j.graphs.push_back({note, WeakNodeRef(root.grad_fn())});
}

std::uint64_t next_node() { return at::sequence_number::peek(); }

bool graph_reaches_back(std::uint64_t since, std::uint64_t node, bool unknown) {
  constexpr std::size_t kMaxNodes = 1'000'000;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> todo;
  std::vector<NodeRef> roots;
  bool any = false;
  for (const Graph& graph : jumps().graphs) {
    if (graph.note <= since) continue;
    any = true;
    // Whether a graph that is gone reached back cannot be seen: `unknown` decides.
    auto root = graph.root.lock();
    if (!root) {
      if (unknown) return true;
      continue;
    }
    todo.push_back(root.get());
    roots.push_back(std::move(root));
  }
  if (!any) return unknown;
  while (!todo.empty() && seen.size() < kMaxNodes) {
    const auto* at = todo.back();
    todo.pop_back();
    if (!seen.insert(at).second) continue;
    // The node of a leaf computes nothing and is kept from graph to graph, whatever its number.
    const bool is_leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(at) != nullptr;
    if (!is_leaf && at->sequence_nr() < node) return true;
    for (const auto& edge : at->next_edges()) {
      if (edge.function) todo.push_back(edge.function.get());
    }
  }
  return !todo.empty();  // of a graph that is too large to be walked nothing is known
}

void forget_jumps() {
  Jumps& j = jumps();
  j.over.clear();
  j.pasts.clear();
  j.graphs.clear();
  j.last = nullptr;
}

void forget_jump_of(const OptimizerEntry& entry) {
  Jumps& j = jumps();
  std::erase_if(j.over, [&](const auto& over) { return over->past->entry == &entry; });
  std::erase_if(j.pasts, [&](const auto& past) { return past->entry == &entry; });
  if (j.last == &entry) j.last = nullptr;
}

}  // namespace finitude::bindings
