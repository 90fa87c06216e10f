// Applied steps on their way into store.sqlite of the run (src/store): what the gate has read anyway. GIL held.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "record/ring_format.h"

namespace finitude::bindings {

struct OptimizerEntry;

// Begins it, in place of the one before. info: its rows of that name. Returns why not, or "".
std::string open_store(const std::string& path, const std::map<std::string, std::string>& info);
// Before the first step of the optimizer with that ordinal. parameters: their names, in order; dtypes: theirs.
void name_in_store(std::uint32_t ordinal, const std::string& class_name, const std::vector<std::string>& parameters,
                   const std::vector<std::string>& dtypes);
// Everything is on disk. Returns what could not be written, or "".
std::string close_store();
// In a child of a fork: it is the parent's.
void let_go_of_store();

// Copies some floats, and of which rows of a data set the step was made; nothing is allocated in the steady state.
void store_step(const OptimizerEntry& entry, const record::StepRecord& step, bool has_marks) noexcept;
// An event of a step: "alarm", "spike" or "warning". Its rows stay in the store; those of an alarm, which may not be
// applied, are put there.
void note_event_in_store(std::uint32_t ordinal, std::uint64_t step, const std::string& event);
// Of the step that was stored last of the optimizer with that ordinal; NaN: not known.
double stored_gradient_norm(std::uint32_t ordinal);
// A value of a tensor that the program named (watch(tensors=)), as this step begins. index: of the name, from 0 on.
void store_tensor(std::uint32_t index, const std::string& name, std::uint64_t step, double absmax);
void forget_stored_passes_of(const OptimizerEntry& entry);

}  // namespace finitude::bindings
