// Measures of two records: each input, parameter and output of one against that of the other.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "compare/distance.h"
#include "compare/noise.h"
#include "compare/record_match.h"

namespace finitude::compare {

// The values of a dump: its file of safetensors.
class DumpedValues {
 public:
  // Empty: there is none. A file that is damaged is a failure.
  static finitude::Result<DumpedValues> open(const std::string& path);
  bool is_empty() const noexcept { return tensors_.empty() && made_.empty(); }
  // What `read` is to return for that key, in place of what the file has.
  void put(const std::string& key, std::string bytes) { made_[key] = std::move(bytes); }
  // False: not there, of another size than `value` says, or too large to be held.
  bool read(const RecordValue& value, std::string* bytes) const;

 private:
  std::shared_ptr<const checkpoint::Checkpoint> file_;
  std::map<std::string, const checkpoint::Tensor*> tensors_;
  std::map<std::string, std::string> made_;
};

struct Measured {
  std::size_t a = 0, b = 0;  // index in that part of the record
  Distance distance;
  std::optional<double> cosine;         // of values; none where one is all zero or not finite
  std::optional<double> norm_distance;  // of values: 2-norm of the difference, relative to the larger 2-norm
  bool is_other_shape = false, is_other_dtype = false;
  Level level = Level::kUnknown;  // as rounding of one operation explains it
};

struct RecordPair {
  std::vector<Measured> inputs, parameters, outputs;
  Level in = Level::kUnknown, own = Level::kUnknown, out = Level::kUnknown;  // own: parameters
  double bound = 0;                                                          // what rounding explains of the outputs
  bool has_other_settings = false, has_other_dtype = false;

  const Measured* worst_output() const;  // null: nothing was compared
};

std::uint64_t reals_of(const RecordValue& value);

struct Dump {
  std::vector<Record> records;
  DumpedValues values;
};

// What repeats of one run differ by: for each output the largest |a - b|.
using LearnedNoise = std::map<std::string, double>;
void learn(const Dump& run, const Dump& repeat, LearnedNoise* noise);

// One for each row; empty where a side is missing.
std::vector<RecordPair> measure_records(const Dump& a, const Dump& b, const std::vector<RecordRow>& rows,
                                        const LearnedNoise& noise);

}  // namespace finitude::compare
