// One side of a comparison: the calls of a step with what they read and wrote, in plain data. Made from a
// tape that is played (play_torch.cpp) or from the trace in a report (trace_run.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/number.h"
#include "finitude/health.h"

namespace finitude::compare {

inline constexpr std::uint32_t kNone = 0xffffffff;

struct Tensor {
  Element element;
  std::vector<std::int64_t> shape;
  sense::Health health;        // of the reals; integers are counted as numbers too where values are known
  std::uint64_t checksum = 0;  // of the values in row-major order
  bool has_checksum = false;
  std::string arg;                     // name in the schema
  std::string key;                     // in the file of values of a dump; may be empty
  std::string name;                    // of the memory where no call wrote it: "parameter fc.weight"; may be empty
  std::uint32_t storage = kNone;       // which memory; kNone: not known
  std::int64_t begin = 0, end = 0;     // bytes of it
  std::uint32_t source = kNone;        // of an input: the call that wrote it last; kNone: it came from outside
  std::vector<std::uint32_t> beneath;  // of an input: earlier calls that wrote parts of it
  bool used = true;                    // of an output: something reads it later
  bool unsteady = false;               // other bits when the same tape was played again

  std::uint64_t numel() const noexcept {
    std::uint64_t n = 1;
    for (const std::int64_t size : shape) n *= static_cast<std::uint64_t>(size);
    return n;
  }
};

// An argument that is no tensor, or a number that stood for one.
struct Scalar {
  std::string arg, text;
};

struct Call {
  std::string op, overload;  // "aten::add", "Tensor"
  std::vector<Tensor> inputs, outputs;
  std::vector<Scalar> scalars;
  std::string file, source, module;  // empty where nobody knows
  int line = 0;
  bool of_backward = false;  // the line is that of the forward call
  bool fresh = false;        // gives memory that nobody wrote
  bool of_gradient = false;  // traces: called in the backward
  bool random = false;       // draws from a generator, which stood at `random_state`
  std::uint64_t random_state = 0;
};

// What the step came to.
struct Result {
  std::string kind, name;
  Tensor value;  // `source` as of an input
};

struct Run {
  std::vector<Call> calls;
  std::vector<Result> results;
  bool results_are_all =
      true;  // there are none that the recording does not name: a trace knows no loss and no gradient as such
  std::vector<std::string> notes;  // what is not in it

  bool says_results() const noexcept { return results_are_all && !results.empty(); }
};

// Finds out which call wrote what each call reads, and which outputs nobody reads, from storages and bytes.
// Where no storage is known nothing is said. Linear but for tensors that are written in many parts.
void connect(Run& run);

// Takes the form of what it reads, and no value of it: ones_like, by which a backward begins at the loss.
bool takes_form(const Call& call) noexcept;

// For each call those that read what it wrote; results count on from the number of calls.
std::vector<std::vector<std::uint32_t>> readers_of(const Run& run);

// For each result of A the one of B of that kind and name, or kNone.
std::vector<std::uint32_t> same_results(const Run& a, const Run& b);

}  // namespace finitude::compare
