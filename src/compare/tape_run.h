// What a tape says by itself of the calls on it: storages, arguments, names.
#pragma once

#include <string>
#include <vector>

#include "capture/tape.h"
#include "compare/run.h"

namespace finitude::compare {

// Calls of a run by entry of the tape: calls and memory that no operator wrote; kNone for the rest. The rows that are
// read of a table are one call.
std::vector<std::uint32_t> calls_by_entry(const capture::Tape& tape);

inline constexpr const char* kMemory = "(memory)";  // as the operator of memory that no operator wrote
// Does entry `index` only fill in more of a table, as the one before?
bool goes_on_filling(const capture::Tape& tape, std::size_t index);
// With all that continues filling behind it.
Call memory_call(const capture::Tape& tape, std::size_t index);

// A number that represents a tensor in the program.
bool is_number(const capture::TensorRef& ref);
std::string number_text(const capture::TensorRef& ref);
// An argument that is no tensor, as text; empty where it says nothing.
std::string argument_text(const capture::Value& value);

// Storage, bytes, shape, format and name; no values.
Tensor described(const capture::Tape& tape, const capture::TensorRef& ref);

}  // namespace finitude::compare
