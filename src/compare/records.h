// A dump as records with names: what modules and operators read and returned in a step, as statistics. Made from a
// dump of --dump (records_of_trace) or from a dump.json of msprobe (msprobe_records.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compare/number.h"
#include "finitude/health.h"

namespace finitude::compare {

inline constexpr std::size_t kMostRecords = 1'000'000;

struct RecordValue {
  std::string arg;  // "input", "output.0", "weight"
  Element element;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> full_shape;  // of a DTensor, whose local part this is; else empty
  std::vector<std::int64_t> begins;      // indices of its first element in the whole; empty: not known
  bool is_partial = false;               // the whole is the sum over ranks
  sense::Health health;                  // min, max, absmax, and sum_sq where it is known
  std::string checksum;                  // of the bits, empty: none
  std::string key;                       // name in the file of values
  bool is_ranged = true;                 // health has a range

  // What it holds, as a text that equal tensors share.
  std::string identity() const;
};

struct Record {
  std::string module;  // path, "Net.head"; of an operator that is no module: its name
  std::string path;    // of the module that an operator is called in
  std::string op;      // class of the module, "parameter", or the operator
  std::string phase;   // forward, backward, optimizer
  std::string settings, file;
  std::uint64_t line = 0, call = 0, micro_batch = 0;
  std::vector<RecordValue> inputs, parameters, outputs;

  bool is_parameter() const noexcept { return op == "parameter"; }
  // Of modules their path, of gradients of parameters the parameter.
  const std::string& name() const noexcept { return is_parameter() && !outputs.empty() ? outputs[0].arg : module; }
};

// Of the trace of a checked report. Is it of modules (--dump checksums or tensors)?
bool has_module_records(const nlohmann::json& trace);
// Of modules or of operators. Operators inside of others, views and allocations are skipped.
std::vector<Record> records_of_trace(const nlohmann::json& trace);

}  // namespace finitude::compare
