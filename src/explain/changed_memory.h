// What is reported of memory that changed: how many bytes and where, and whose memory lies around them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "explain/finding.h"
#include "record/trace.h"

namespace finitude::explain {

std::string with_commas(std::uint64_t value);  // "8,192"

// The call of the program's that an op runs within, or itself.
record::OpId outermost(const record::Trace& trace, record::OpId id);
std::string call_words(const record::Trace& trace, record::OpId id);  // "aten::add at train.py:9"

// "2,048 bytes changed between writer and reader (bytes 0 to 2,047 of 8,192, ...": of an op named record::kUnseenWrite.
std::string changed_bytes(const record::Op& change);

// The address of those bytes, the tensors that lie before and after their tensor, and those that had their memory
// before. Lines without a prediction.
std::vector<Experiment> around_change(const record::Trace& trace, record::OpId change);

// The same of a tensor as an op read it.
std::vector<Experiment> around_use(const record::Trace& trace, const record::TensorUse& use, record::OpId reader);

}  // namespace finitude::explain
