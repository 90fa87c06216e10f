// What rules ask of one birth: the ops involved, the operand that matters, families of ops, figures in words.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "explain/finding.h"

namespace finitude::explain {

// Scores. Rules compete; within a band the more specific one is a little higher. A contradicted
// experiment costs kContradiction, so a claim that its own test refutes falls into the band below.
//   1000  where the value came from settles it: a bad batch, a bad checkpoint, memory nobody wrote
//    900  an op that can fail in one way only: CTC, a fully masked softmax, a variance of one element
//    800  the setting outranks the op: half precision, loss scale, optimizer, clipping, a custom backward
//    700  an operand at a point where the function has no value: log 0, x / 0, sqrt of a negative
//    600  beyond the range of the format: exp, products, sums, gradients that grew
//    500  arithmetic of infinities that were already there: 0 x Inf, Inf - Inf
//    300  only the sink is known
inline constexpr int kScoreOrigin = 1000;
inline constexpr int kScoreOneMeaning = 900;
inline constexpr int kScoreSetting = 800;
inline constexpr int kScorePoint = 700;
inline constexpr int kScoreRange = 600;
inline constexpr int kScoreInfinities = 500;
inline constexpr int kScoreSinkOnly = 300;
inline constexpr int kContradiction = 150;

// "aten::_log_softmax" -> "log_softmax", "aten::div_" -> "div", "aten::_foreach_div_" -> "div",
// "SqrtBackward0" -> "Sqrt". The form in which ops and nodes are compared.
std::string plain_name(std::string_view name);
bool one_of(std::string_view name, std::initializer_list<std::string_view> names);

// A node that PyTorch generated ("SqrtBackward0"), as opposed to a custom Function's ("MySquareBackward").
bool is_builtin_node(const record::Op& node);
// Is what it computes a derivative by torch? AccumulateGrad only adds: all else that runs in it is a hook of the
// program.
bool is_derivative(const record::Op& node);

// One argument of an op, tensor or number alike.
struct Operand {
  const record::TensorUse* tensor = nullptr;
  const record::ScalarUse* scalar = nullptr;

  explicit operator bool() const { return tensor != nullptr || (scalar != nullptr && scalar->number.has_value()); }
  double min() const;
  double max() const;
  double absmax() const;
  std::uint64_t zeros() const;
  std::uint64_t numel() const;
  bool has_inf() const;
  bool has_nan() const;
  bool has(double value) const;  // as far as range and counts say: exact for 0, at the ends of the range else
  sense::DType dtype() const;    // kOther for a number
};

// By schema name; where the trace has no name for it, by its place among the tensor inputs.
Operand operand(const record::Op& op, std::string_view arg, std::size_t place);
// A tensor of integers or booleans: the trace has no statistics of it.
bool is_integral(const Operand& operand);
// A number in the program, and its value where the trace has it (not for an integer that is as a 0-dim
// tensor).
bool is_constant(const record::Trace& trace, const Operand& operand);
std::optional<double> constant(const record::Trace& trace, const Operand& operand);

// That a reduction was given: "dim" as a number or a list; empty where it has none.
std::vector<std::int64_t> dims_of(const record::Op& op);

bool inputs_finite(const record::Op& op);  // tensors and numbers
const record::TensorUse* bad_input(const record::Op& op);
const record::TensorUse* bad_output(const record::Op& op);
sense::DType result_dtype(const record::Op& op);  // of the first floating output; kOther if none

// The ops that a birth is about.
struct Scene {
  explicit Scene(const Evidence& evidence);

  const Evidence& evidence;
  const record::Trace& trace;
  const locate::Birth& birth;
  const record::Op* op = nullptr;       // the birth's op; null for data, state and memory outside ops
  const record::Op* node = nullptr;     // backward births
  const record::Op* forward = nullptr;  // backward births: what the node belongs to
  bool backward = false;

  // The first link of the chain: the op that turned finite values into a non-finite one, upstream of the
  // birth where the birth already read such a value (or its forward op did), and the birth's own op
  // otherwise. kNone where there is no op.
  record::OpId culprit = record::kNone;
  const record::Op* first = nullptr;  // &trace.ops[culprit]

  bool forward_bad() const;  // backward births: the forward op already read or made a non-finite value

  const record::Op* written_forward() const;  // of a birth in a node that PyTorch generated; else null
  // The innermost user frame to mend: of that, the first link, else the forward op, the birth, or its readers.
  const record::Frame* frame() const;
};

// A finding with the place to mend filled in and confidence still to be judged (Probe::close).
Finding finding(const Scene& scene, std::string_view cause_class, int score, std::string text, std::string fix);

const record::Frame* top_frame(const record::Trace& trace,
                               std::uint32_t stack);  // the innermost user frame; null where none is known
std::string at_line(const record::Trace& trace, const record::Op& op);             // " at model.py:12", or empty
void mend_at(const record::Trace& trace, const record::Op& op, Finding* finding);  // at that line, where it is known

// "hidden in forward by aten::where at model.py:12, but its gradient is multiplied by it": empty when nothing
// hid it.
std::string hidden_by(const Scene& scene);

std::string figure(double value);                                 // "65504", "1.2e-08", "-Inf"
std::string counted(std::uint64_t n, std::string_view singular);  // "1 zero", "3 zeros", "2 entries"
std::string zeros_of(const Operand& operand);                     // "3 zeros among 32 values", "an integer zero"
std::string at_rows(const locate::Birth& birth);                  // " at rows 4, 9, 31", or empty
std::string dtype_name(sense::DType dtype);

}  // namespace finitude::explain
