// The trace of one step: every op with what it read and wrote, in plain data. Written by the armed observer,
// read by locate, explain and show. Knows nothing of torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "finitude/dtype.h"
#include "finitude/health.h"

namespace finitude::record {

using OpId = std::uint32_t;       // index into Trace::ops, in order of start
using StorageId = std::uint32_t;  // index into Trace::storages
inline constexpr std::uint32_t kNone = 0xffffffffu;

// Where a value came from before the trace saw an op write it.
enum class Origin : std::uint8_t {
  kUnknown,  // first seen as the input of an op
  kParameter,
  kBuffer,
  kOptimizerState,
  kGradient,  // named, alive before the step
  kBatch,     // handed over by a DataLoader
  kConstant,  // a number in the program (wrapped number, or a tensor made from literals)
};

struct Storage {
  Origin origin = Origin::kUnknown;
  std::string name;             // "head.weight", "batch[0]"; empty where there is none
  std::uint32_t stack = kNone;  // kBatch: the line that took the batch in
  // Where it lay when it was first seen, in the process that was traced; 0: not known. Not written to files.
  std::uint64_t address = 0;
  std::int64_t size_bytes = 0;
  OpId freed_before = kNone;  // its memory had been given back when this op began; kNone: that was not seen
};

inline constexpr std::size_t kMaxBadRows = 64;

// One tensor as one op saw it. Byte range [begin, end) is the span of the view inside its storage.
struct TensorUse {
  StorageId storage = kNone;  // kNone: no readable memory (undefined, meta, fake, wrapper subclasses)
  std::int64_t begin = 0, end = 0;
  bool dense = true;  // every byte of the span belongs to the view
  sense::DType dtype = sense::DType::kOther;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // of a view that was not looked at and is not contiguous; else empty
  sense::Health health;               // of exactly the elements of this view, at that time
  std::int64_t first_bad = -1;        // row-major index of its first NaN or Inf; -1: none
  std::vector<std::int64_t>
      bad_rows;     // indices of dimension 0 that hold a NaN or Inf; at most kMaxBadRows, outputs only
  std::string arg;  // schema argument name ("self", "other", "grad_output"; outputs: "" or "running_mean"...)
  bool requires_grad = false;
  bool written = false;  // inputs: the op writes it (schema alias info, or a known exception)
};

// A non-tensor argument.
struct ScalarUse {
  std::string arg;
  std::string text;              // as printed: "-inf", "1e-08", "True", "[0, 1]", "mean"
  std::optional<double> number;  // where it is one number
  bool tensor_like = false;      // a Scalar that stood for a tensor operand ("other" of mul.Scalar)
};

enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer, kData };

struct Op {
  std::string name;        // "aten::log", no overload; a node: "LogBackward0"; a custom Function: its class
  bool is_node = false;    // a BACKWARD_FUNCTION event: encloses the ops of its backward
  bool is_view = false;    // outputs alias inputs, nothing is computed
  bool allocates = false;  // empty, empty_like, ...: output is uninitialised memory
  bool random = false;     // draws from a generator
  bool failed = false;     // ended by an exception
  Phase phase = Phase::kForward;
  OpId parent = kNone;          // enclosing op or node
  OpId node = kNone;            // nearest enclosing node (phase backward)
  OpId forward = kNone;         // nodes: the innermost forward op that made it, if it was traced
  std::uint32_t stack = kNone;  // index into Trace::stacks; backward ops: kNone or a Python frame of a custom Function
  std::uint32_t end_order = 0;  // rank by end; an op's children end before it
  std::uint32_t micro_batch = 0;
  std::vector<TensorUse> inputs, outputs;  // outputs of `-> ()` and in-place ops: the tensors written
  std::vector<ScalarUse> scalars;
  bool captured = false;  // the laboratory can run it again on its inputs (Lab::run)
};

struct Frame {
  std::string file;  // absolute
  int line = 0;
  std::string function;
  // Where within the line, which several expressions may share; not written to files. site: of the call among the
  // code's instructions, -1: not known. The others as ast has them of that expression, -1 before Python 3.11.
  int site = -1;
  int column = -1, end_line = -1, end_column = -1;
};

struct Stack {
  std::vector<Frame> frames;  // innermost first, user frames only (outside torch, the standard library and finitude)
  std::string module;         // "Classifier.head": class of the root, then the qualified name; empty outside modules
  std::string statement_context;  // reserved
  bool in_optimizer =
      false;  // the innermost frame is a method of an optimizer; not written to files: ops have their phase
};

struct Sink {
  std::string kind;                // "loss" | "gradient" | "parameter" | "state" | "buffer"
  std::string name;                // "loss", "head.weight", ...
  TensorUse value;                 // storage and span at the time it was judged
  std::uint32_t at_end_order = 0;  // only writes that ended before this count; 0xffffffff: all
  std::uint32_t micro_batch = 0;
};

struct Trace {
  std::vector<Op> ops;
  std::vector<Storage> storages;
  std::vector<Stack> stacks;
  std::vector<Sink> sinks;
  bool truncated = false;  // a limit was reached; later ops are missing
  // Before these ops it was asked of each storage whether its memory had been given back. Not written to files.
  std::vector<OpId> freed_asked_at;
};

}  // namespace finitude::record
