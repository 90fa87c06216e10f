// What is known of a tape beside what a replay needs: the lines of the program that its calls come from,
// which outcomes were non-finite, and some of their values. A part of the file of its own, which readers that do not
// know it leave alone.
#pragma once

#include <string>
#include <string_view>

#include "capture/tape.h"

namespace finitude::capture {

// Empty where nothing is known. docs/format/tape.md, "Notes".
std::string write_notes(const Tape& tape);

// Adds them to a tape whose entries and outcomes are read. False: they do not fit it, or are no notes; the
// tape is then without any.
bool read_notes(std::string_view bytes, Tape* tape);

}  // namespace finitude::capture
