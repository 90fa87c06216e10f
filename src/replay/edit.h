// A change to the program, tried on the whole captured step. Plain data; step_lab_torch.h carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "finitude/dtype.h"
#include "record/trace.h"

namespace finitude::replay {

// One change to calls of one operator. The backward follows it: where elements of an argument are replaced,
// they get no gradient (as clamp and masked_fill have it), and the nodes of these calls read the replaced
// argument. Exactly one of the kinds:
//   clamp      elements of `arg` below `min` or above `max` become that
//   replace    elements of `arg` equal to `from` become `to` (Inf and NaN match themselves)
//   shift      the largest element along `dims` is subtracted from each of `arg`, the exponents of a softmax or of a
//              logarithm of their sum (to which it is added again). Gradients flow as they did
//   skip  elements of the (first) result that are not finite become `to`, and where the derivative is not finite
//              of a finite incoming gradient, no gradient flows: as if torch.where had chosen before and after
//   in dtype   nothing of single calls: the whole step is computed in another format
struct Edit {
  enum class Kind : std::uint8_t { kClamp, kReplace, kShift, kLeaveOut, kCompute };
  Kind kind = Kind::kClamp;
  bool changes_argument() const { return kind == Kind::kClamp || kind == Kind::kReplace || kind == Kind::kShift; }
  std::vector<record::OpId> ops;  // of the trace that was taken along with the tape
  std::string arg;                // of the operator's schema: "self", "other"
  std::vector<std::string> args;  // of each of `ops`, where they do not all read it under one name; else empty
  std::optional<double> min, max;
  double from = 0, to = 0;
  bool from_any_bad = false;       // whatever is not finite, in the place of `from`
  std::vector<std::int64_t> dims;  // kShift; empty: all
  // kShift: a logarithm of the sum of exponentials, to which the maximum is added again; kNone: there is none.
  record::OpId added_to = record::kNone;
  double spread = 0;  // of `to`: by this share more in the last element than in the first, evenly in the logarithm
  bool in_all_arguments = false;  // of each call that are the very same view: both factors of x * x. Forward only
  std::optional<sense::DType> dtype;
  std::string switch_on;  // an argument of the calls and of their nodes that is a switch, to be turned on
  std::string text;       // what is done, for the reader: "self clamped at 1e-12"
  bool finite_only =
      false;  // whether the results are finite is all that is asked: they are not held against the unchanged step
  std::string advice;  // what to write in the program, where it is this change that does it; empty: as the rule has it
  // The same as a sentence of advice, where the rule's text names another change; empty: the text names this one.
  std::string how;
  std::string also;  // behind either: which calls it was tried at, where those are not the calls of one line
  std::string file;  // where; empty: as the rule has it
  int line = 0;
  std::string code;  // the same as Python behind the argument: ".clamp_min(1e-12)"; empty: not so simple
};

// What a step came to that was computed with one thing changed.
struct StepTrial {
  bool ran = false;
  std::string why_not;           // where it did not run, or nothing could be learned from it
  std::vector<std::string> bad;  // results that are not finite: "loss", "gradient of head.weight"
  // Of a tape of several ranks: results that are not finite and that the change cannot reach, as they are made of what
  // other ranks gave, which is as it was recorded. Nothing is learned of them.
  std::vector<std::string> given;
  std::string difference;      // what else changed: the first value that was finite and came out otherwise; empty: none
  std::uint64_t compared = 0;  // values that were finite and that the change could have reached
  std::string rounding_in;     // not empty: the format whose rounding explains by how much they differ
  double seconds = 0;
  // docs/contract.md, "Verified fix": loss and gradients finite, and what the birth did not touch as it was.
  bool verified() const { return ran && bad.empty() && given.empty() && difference.empty(); }
};

// The samples of the batch that make the step fail, found by putting a copy of one sample in the place of others.
struct GuiltyElement {
  std::string input;                // "batch[0]"; empty: nobody named it
  std::size_t number = 0;           // of the inputs, which one
  std::vector<std::int64_t> index;  // within the sample; empty: the sample is one number there
};

struct GuiltyRows {
  bool ran = false;
  bool up_to_birth = false;  // not the whole step was played, but up to the birth, whose result was judged
  std::string why_not;
  std::int64_t rows = 0, filler = 0;  // of the batch; the one that was copied
  std::vector<std::int64_t> guilty;
  bool together = false;  // no single one makes it fail: these do together
  // A loader gave them, or they stay apart, row by row, up to the birth. Else they are rows of some input that need not
  // be the batch.
  bool of_batch = false;
  bool of_samples = false;  // that, or of a data set of which the step takes a batch
  bool across = false;  // only of something whose rows meet columns of the batch: a weight for each class, a position
  bool more = false;    // time or number ran out before all were found
  bool one_by_one = true;  // false: so many that it was not tried which of them fail alone
  int replays = 0;
  // Of a single guilty sample: what of it makes the step fail, each alone or all together; empty: no few elements do,
  // or not looked for.
  std::vector<GuiltyElement> elements{};
  bool elements_together = false;
};

// The step with memory that it read before anything was written to it, filled with other values.
struct FillTrial {
  StepTrial zeros, nans;  // nothing of it ran: the step reads no such memory
  record::OpId made =
      record::kNone;  // the call of the trace that handed it out, the first that makes a difference alone
  std::string op;     // its name
  std::uint64_t bytes = 0;
};

// A call that makes NaN of zeros, 0 / 0: the replaced zeros, from which both operands are computed.
struct Beside {
  record::OpId call = record::kNone;
  Edit zeros;                       // of all that read the zeros; `to` is filled in by the caller that asks
  bool below = true, above = true;  // sides of zero on which such values lie
  bool uneven = false;              // each zero is replaced by a different value, up to a hundred times as large
};

// The unchanged step, played several times.
struct Repeats {
  int runs = 0;      // 0: it could not be played
  int alike = 0;     // of them: all results have the bits of the first
  int with_bad = 0;  // of them: a result is not finite
  int threads = 0;
  bool has_results = true;  // loss, gradients or others were recorded of the step
};

// An op of the trace, kNone: none, of whose results some are notes for its backward (locate/flows_on.h): these are not
// judged, as a kernel may leave elements of them unwritten.
struct JudgedOp {
  record::OpId op = record::kNone;
  std::vector<std::size_t> notes;
};

// Runs the whole captured step again. The live half implements it on torch; tests with tables.
class StepLab {
 public:
  virtual ~StepLab() = default;
  // Nothing that follows means anything unless the unchanged step comes out with the bits that were recorded:
  // empty, or why it does not.
  virtual std::string faithful() = 0;
  virtual double step_seconds() const = 0;  // of one replay
  // What of the step is judged: "loss and gradients", or one of them, where the step has no other.
  virtual std::string judged() const { return "loss and gradients"; }
  virtual StepTrial run(const Edit& edit) = 0;
  // What the call gives in float64, where it gives NaN in the unchanged step, with the zeros replaced by `value`; none
  // where that could not be tried.
  virtual std::vector<double> beside(const Beside&, double /*value*/) { return {}; }
  // Unchanged, with deterministic kernels only.
  virtual StepTrial deterministic() = 0;
  // spare: rows that are known to be bad. birth: what is judged where the whole step cannot be (other samples may make
  // other shapes), or holds several batches. Takes no longer than `seconds`, but for one replay.
  virtual GuiltyRows guilty_rows(const std::vector<std::int64_t>& spare, const JudgedOp& birth, double seconds) = 0;
  // Takes no longer than `seconds`, but for two replays.
  virtual FillTrial filled(double seconds) = 0;
  // On the weights that the last update of the optimizer would have led to, had it been `share` of what it was: 0 takes
  // it back. Does not run, and says why, where what the optimizer keeps does not say that update.
  virtual StepTrial after_share_of_update(double share) = 0;
  // Size of that update over the size of the weights before it: the median over the weights; 0: not known.
  virtual double size_of_update() { return 0; }
  // Unchanged, so many times more: in how many of them did all results have the bits that were recorded?
  virtual int again(int times) = 0;
  // Unchanged, with so many threads; 0: as many as there were.
  virtual Repeats repeats(int /*times*/, int /*threads*/) { return {}; }
};

}  // namespace finitude::replay
