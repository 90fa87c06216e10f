// Lines of the program, and which expression of a line an operation is. Files are read as they are now; nothing is
// said where they cannot be read or the position is not known (before Python 3.11, and of programs in C++).
#pragma once

#include <string>

#include "record/trace.h"

namespace finitude::show {

// The text of one line of a file, trimmed; empty where it cannot be read.
std::string source_line(const std::string& file, int line);
// The expression of a line that has several of its operation, as "torch.sin(v) / v"; empty where it has one, or where
// that is not known.
std::string expression_of(const record::Trace& trace, record::OpId id);
inline constexpr const char* kConstantZero = "the constant 0";

// What a division divides by in the program's words: kConstantZero, "n", "len(batch)"; empty where the line has no
// division there.
std::string divisor_of(const record::Trace& trace, record::OpId id);

}  // namespace finitude::show
