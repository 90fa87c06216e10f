// What the tracer must know of an operator beside its name, looked up once per operator.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace finitude::observe {

struct OpInfo {
  bool is_op = false;        // has a schema; else a custom Function or a plain range
  bool transparent = false;  // not recorded: its children stand for it
  std::string name;          // without overload
  std::vector<std::string> args, returns;
  std::uint64_t writes = 0;      // bit i: argument i is written
  std::uint64_t statistics = 0;  // those of them that are written in training only
  std::size_t training = 64;     // the argument that says so
  std::uint64_t overwrites = 0;  // bit i: argument i is written without being read
  bool may_view = false;         // outputs may alias inputs unwritten
  bool allocates = false;
  bool random = false;
  bool composite = false;  // one kernel for all devices: it computes by calling other operators
  // Learned: what it writes is written by operators inside of it.
  mutable std::atomic<bool> by_parts{false};
  bool from_host = false;  // hands over memory that host code filled (torch.tensor)
};

// Cached by the address of the name, checked by its text. Any thread.
const OpInfo& op_info(const at::RecordFunction& fn);

// Which arguments a call writes, as bits. Batch norm in eval mode writes none.
std::uint64_t writes_of(const OpInfo& info, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace finitude::observe
