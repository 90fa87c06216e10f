// Which of the differences between two aligned runs are causes, and which of those is the first that rounding
// does not explain.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compare/align.h"
#include "compare/noise.h"
#include "compare/run.h"

namespace finitude::compare {

std::vector<Key> keys_of(const Run& run);
// aten::add_ and aten::add are one operation: the name without the marks of writing in place.
std::string_view stem_of(std::string_view name);

// What was measured of the two calls in a row.
struct Pair {
  std::vector<Distance> inputs, outputs;  // by position
  bool swapped = false;                   // the first two inputs of B are held against those of A the other way round
  // The call of one side on the inputs of the other: does it come to what the other came to?
  enum Tried { kNotTried, kAgrees, kDisagrees } tried = kNotTried;
};

// The rows of two runs: aligned, and then held against the flow of data. Two calls of one name that read other things,
// hand them to other calls and come to other values are not each other's: pairs like that are taken apart. Where
// the operands of a product or a sum stand the other way round, those of B are turned. `pairs`: one for each row.
std::vector<Row> rows_of(const Run& a, Run& b, std::vector<Pair>* pairs);

// Distances by statistics and checksums, where there is none by element yet.
void fill_in(const Run& a, const Run& b, const std::vector<Row>& rows, std::vector<Pair>& pairs,
             std::vector<Distance>& results);

// Before that: element by element, of dumps that have the values of both.
class DumpedValues;
void fill_in_values(const Run& a, const DumpedValues& in_a, const Run& b, const DumpedValues& in_b,
                    const std::vector<Row>& rows, std::vector<Pair>& pairs);

struct Root {
  enum Kind {
    kKernel,     // the same call on the same values came to something else
    kArgument,   // a call with another number, string or flag
    kRandom,     // the generator was in another state, or the numbers are drawn in another way
    kOperators,  // calls that the other side does not have
    kInput,      // what was there before the step
    kWiring,     // the same call reads what another call made
    kNonFinite,  // NaN or Inf on one side; until here only rounding differed
  } kind = kKernel;
  Level level = Level::kNoise;
  std::size_t row = 0;              // where it is: index into the rows
  std::vector<std::size_t> others;  // kOperators: the rows around it that have one side only, this one among them;
                                    // kRandom: those that make one's numbers or the other's, or drew between
  bool elsewhere = false;           // kRandom: the generator was in another state
  std::size_t seen_at = 0;          // the row in which it shows; the number of rows: in a result
  std::vector<std::pair<Scalar, Scalar>> arguments;  // kArgument: in A, in B
  Tensor of;                                         // kInput: what differs, as A has it
  Distance distance;                                 // of an output there; kInput, kOperators, kWiring: of the input
  double bound = 0;                                  // what rounding explains of it
};

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

struct Judgement {
  std::vector<Root> roots;          // in the order in which they show; at most kMaxRoots
  const Root* first() const;        // the first meaningful divergence; null: none
  const Root* first_noise() const;  // where rounding begins to differ; null: nowhere
  // Largest relative distance of an output and its row, while nothing but noise was met: what noise grew to.
  double noise_growth = 0;
  std::size_t noise_row = 0;
  std::size_t same = 0, noise = 0, differ = 0, unknown = 0;  // rows with both sides, by their outputs
  std::size_t same_nan = 0;              // of `same` those that hold NaN on both sides, which is equal to nothing
  std::vector<std::size_t> other_dtype;  // rows whose outputs have another dtype
  std::size_t both_nan = kNowhere;       // first row in which both make NaN or Inf
  std::size_t one_nan = kNowhere;        // first row in which one does
  std::vector<std::size_t> arguments;    // rows with other arguments
};
inline constexpr std::size_t kMaxRoots = 64;

Judgement judge(const Run& a, const Run& b, const std::vector<Row>& rows, const std::vector<Pair>& pairs,
                const std::vector<Distance>& results);

std::string_view word(Root::Kind kind) noexcept;

}  // namespace finitude::compare
