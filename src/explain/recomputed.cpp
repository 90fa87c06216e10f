#include "explain/recomputed.h"

#include "explain/evidence.h"

namespace finitude::explain {
namespace {

using record::Frame;
using record::kNone;
using record::Op;
using record::OpId;

const std::vector<Frame>* frames_of(const record::Trace& trace, OpId id) {
  for (int depth = 0; id < trace.ops.size() && depth < 16; ++depth, id = trace.ops[id].parent) {
    const std::uint32_t stack = trace.ops[id].stack;
    if (stack < trace.stacks.size() && !trace.stacks[stack].frames.empty()) return &trace.stacks[stack].frames;
  }
  return nullptr;
}

// The frames of the first computation and of this one are the same functions up to the line that called the checkpoint.
const Frame* called_at(const record::Trace& trace, OpId cut) {
  const std::vector<Frame>* anew = frames_of(trace, cut);
  const OpId node = trace.ops[cut].node;
  const OpId forward = node < trace.ops.size() ? trace.ops[node].forward : kNone;
  const std::vector<Frame>* first = forward < trace.ops.size() ? frames_of(trace, forward) : nullptr;
  if (first == nullptr) return anew != nullptr ? &anew->front() : nullptr;
  if (anew == nullptr || anew->front().line == first->front().line) return &first->front();
  std::size_t i = 0;
  while (i + 1 < first->size() && i < anew->size() && (*first)[i].function == (*anew)[i].function &&
         (*first)[i].file == (*anew)[i].file)
    ++i;
  return &(*first)[i];
}

}  // namespace

OpId cut_off_in(const record::Trace& trace, OpId made) {
  if (made >= trace.ops.size() || !trace.ops[made].allocates) return kNone;
  for (OpId id = trace.ops[made].parent, depth = 0; id < trace.ops.size() && depth < 16;
       id = trace.ops[id].parent, ++depth) {
    const Op& op = trace.ops[id];
    if (op.failed && !op.is_node && op.phase == record::Phase::kBackward) return id;
  }
  return kNone;
}

void report_cut_off(const record::Trace& trace, OpId cut, OpId made, Finding* finding) {
  finding->text = "the recomputation of torch.utils.checkpoint ended inside of " + trace.ops[cut].name +
                  ", before that wrote the memory that it had from " + trace.ops[made].name + ", and backward reads it";
  finding->fix_text =
      "this is a bug of torch, not of this line: until it is mended there, give checkpoint use_reentrant=True, or "
      "train under "
      "`with torch.utils.checkpoint.set_checkpoint_early_stop(False):`";
  finding->edits.clear();
  if (const Frame* frame = called_at(trace, cut)) {
    finding->fix_file = frame->file;
    finding->fix_line = frame->line;
  }
}

}  // namespace finitude::explain
