// Copies of what an optimizer owns, from right before a step of it that follows a step of another one: with them
// the window of the other can be run again from its start, which lies before that step.
//
// D, G, D, G: G's window began at G's last step, and D has stepped since. Where G's step turns out bad, D is put
// back to its copy, and the second run takes D's step once more. Several steps of one optimizer in a row need one
// copy, from before the first. All with the GIL held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gate/state_torch.h"

namespace finitude::bindings {

// How much may be kept. In bytes, of all optimizers together; 0: nothing. share: of the time that passes, what
// taking the copies may cost before no more are taken; 0: any.
void set_jump_budget(std::size_t size_bytes, double share) noexcept;
// Why no copies are taken any more, "" if they are.
const std::string& jump_refused() noexcept;

// Right before an optimizer applies a good step, and before anything else copies it: takes what is wanted.
void copy_before_jump(OptimizerEntry& entry);
// It is applied now; every applied step has to come by here, also those that no copy can be had of.
void note_applied(OptimizerEntry& entry);
// Of the last step that was applied by anyone; they count up from 1.
std::uint64_t applied_serial() noexcept;
// A step of it was skipped. They count up from 1 too; not counted while a second run is under way.
void note_left_out(OptimizerEntry& entry);
std::uint64_t left_out_serial() noexcept;
// Whose steps were skipped after that one.
std::vector<OptimizerEntry*> left_out_since(std::uint64_t since);

// Who stepped after step `since`, in the order in which they are to be put back.
std::vector<OptimizerEntry*> stepped_since(std::uint64_t since);
// Why what they did cannot be undone. Empty: it can be, or nobody stepped.
std::string undo_obstacle(std::uint64_t since);

// Puts all of them back to before their first step after `since`. What they are now is kept for `forget_jump`.
bool begin_jump(std::uint64_t since);
// After the second run: did their steps come out with the same values, as often? Everything of theirs is what it was
// before `begin_jump`, whatever the answer.
bool end_jump();
// Is a step of this one part of the second run that is under way?
bool is_jumped_over(const OptimizerEntry& entry) noexcept;

// A root handed to an outermost backward, by the serial of its note. Nothing is kept alive; costs nothing while
// only one optimizer steps.
void note_graph(std::uint64_t note, const at::Tensor& root);
// The autograd sequence number that the next node of this thread gets.
std::uint64_t next_node();
// Does a graph of the losses after note `since` hold nodes older than `node`? Then a second run that begins in between
// would walk backward over them once more, or would not have them at all. unknown: the answer where a graph is gone,
// or there is none.
bool graph_reaches_back(std::uint64_t since, std::uint64_t node, bool unknown);

void forget_jumps();
void forget_jump_of(const OptimizerEntry& entry);

}  // namespace finitude::bindings
