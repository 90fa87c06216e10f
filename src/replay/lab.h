// The laboratory: a captured call run again with one thing changed. Plain data; lab_torch.h implements it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "record/trace.h"
#include "sense/exponents.h"

namespace finitude::replay {

// One change to a captured call, tried on its own inputs. Fields that are unset leave the call as it was.
struct Variant {
  std::optional<sense::DType> compute_dtype;  // every floating input cast to it, the op run in it
  std::string clamp_arg;                      // tensor argument to clamp, with the bounds below
  std::optional<double> clamp_min, clamp_max;
  std::string add_arg;
  double add = 0;  // arg + add (an epsilon)
  std::string replace_arg;
  double replace_from = 0,
         replace_to = 0;  // elements of arg equal to `from` become `to` (NaN and Inf match themselves)
  std::string scale_arg;
  double scale = 1;                     // arg * scale
  std::vector<std::int64_t> drop_rows;  // rows (dimension 0) skipped of every tensor that has as many rows as
  std::int64_t rows = -1;               // this, or, where none has, as the first tensor
  bool again = false;                   // unchanged: does it do the same?
  bool by_parts = false;  // by plain operators in the place of the fused one; does not run where none are known
};

struct Trial {
  bool ran = false;
  std::string why_not;                 // where it did not run
  std::vector<sense::Health> outputs;  // of its tensor outputs, in order
  bool finite() const;                 // ran and every output is finite
};

// How the magnitudes of a tensor that a captured call was given are spread.
struct Spread {
  std::string arg;
  std::vector<std::int64_t> shape;
  sense::Exponents exponents;
};

// Integers that a captured call made, against the same computed in float64.
struct Wrapped {
  std::uint64_t values = 0;          // that differ: they left the range of the integers
  double low = 0, high = 0;          // of the integers
  double smallest = 0, largest = 0;  // of what float64 makes
  std::string dtype;                 // "int8"
};

// Whole numbers that a captured call was given.
struct Integers {
  std::vector<std::int64_t> shape, values;  // values row-major
};

// Runs captured calls again. The live half implements it on torch; tests with tables.
class Lab {
 public:
  virtual ~Lab() = default;
  virtual Trial run(record::OpId op, const Variant& variant) = 0;
  // Of its floating tensors, in their order; empty where the call was not captured or they are very large.
  virtual std::vector<Spread> spreads(record::OpId) { return {}; }
  // Nothing where the call makes no integers, was not captured, or all of them are as float64 has them.
  virtual std::optional<Wrapped> wrapped(record::OpId) { return std::nullopt; }
  // The whole numbers of that argument (labels, lengths), a tensor or a list. Nothing where the call was not captured,
  // the argument is something else, or it is very large.
  virtual std::optional<Integers> whole_numbers(record::OpId, const std::string& /*arg*/) { return std::nullopt; }
};

}  // namespace finitude::replay
