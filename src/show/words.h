// The sentences of a report, made once and shared by every renderer. Raw text: renderers make it printable or
// escape it.
#pragma once

#include <string>
#include <vector>

#include "show/read.h"

namespace finitude::show {

std::string number_text(double value);                       // "0.25", "1e-08", "NaN", "Inf", "-Inf"
std::string grouped(std::uint64_t value);                    // "21,476"
std::string counted(std::uint64_t value, const char* noun);  // "1 step", "413 steps"

// "step 412 stopped before the optimizer: loss is NaN (rank 0 of 4). Weights are clean."
std::string headline(const Json& report, const Json& alarm);
// What the outcome of the whole run was, in one sentence; says the reason where nothing was watched.
std::string outcome_sentence(const Json& report);
// "413 steps, 21,476 gradients scanned, 2 scaler skips, ..."
// How a run that has not ended by itself is, as far as the report says; empty for one that has.
std::string end_sentence(const Json& report);
std::string watched_sentence(const Json& report);

// The sink that the path of the alarm ends at: that of its first birth where several are bad, else the alarm's.
const Json& path_end(const Json& alarm);

// "model.py:87", relative to the folder of the report's script where it lies below it; empty if there is no
// file.
std::string place(const Json& report, const Json& located);

// "LogBackward0", "aten::log", or what carried the value in ("batch[0]"); empty where nothing is known.
std::string born_at(const Json& birth);

// "[32,10] float32", and then the counts and range that matter: "3 zeros at rows 4, 9, 31", "min 0", "3 x
// -Inf".
std::string tensor_type(const Json& statistics);
// "at rows 4, 9" of a tensor with bad values: its own rows, or those of the birth where it can have them.
std::string rows_of(const Json& statistics, const Json& rows_of_birth);
std::vector<std::string> tensor_values(const Json& statistics, const Json& rows_of_birth);
std::string rows_words(const Json& rows);

// "rows 4, 9 of the batch = samples 1033, 72 of the data set"; empty where a birth names no samples, nor rows of the
// batch.
std::string samples_words(const Json& birth);
// What was done, with the samples that it was done to where they are known.
std::string experiment_words(const Json& experiment);

// "eps = 1e-08", the arguments that are no tensors.
std::vector<std::string> scalars_words(const Json& birth);

std::string gradients_sentence(const Json& alarm);  // empty where nothing is known
std::string buffers_sentence(
    const Json& alarm);  // buffers that the step left NaN, and whether they are as before it; may be empty
// A later alarm that is the same finding as another one of the report: it is listed with that one.
bool is_repeat(const Json& report, const Json& alarm);
std::string repeats_sentence(const Json& report,
                             const Json& alarm);  // "steps 7 to 16: ..."; empty where there are none
// The lines of a diff, as a program that applies them has to get them.
std::vector<std::string> patch_lines(const std::string& diff);
// What the experiments with the whole step took, and what they might have taken; empty: none was made.
std::string time_sentence(const Json& cause);
std::string rerun_sentence(const Json& alarm);  // empty where no second run was made and nothing is said about it
std::string cause_sentence(const Json& cause);  // with its class; empty for none
std::string cause_tag(const Json& cause);       // "proven by 3 of 3 experiments", "likely", ...
std::string fix_sentence(const Json& report, const Json& fix);
std::string fix_tag(const Json& fix);  // never claims more than was tried
// A command about it, quoted for a shell: a capsule's name comes from outside. word: " replay ".
std::string capsule_command(const Json& report, const std::string& capsule, const std::string& word);
// What is behind the path of an alarm's capsule: how to replay it, and whether it is there yet.
struct CapsuleNote {
  std::string before, command, after;
  std::string joined() const;
};
CapsuleNote capsule_note(const Json& report, const Json& alarm);
bool is_of_cpp(const Json& report);  // of a program without Python
// How to continue from before the growth that led to an alarm; empty where it is not one of that kind, or nothing is
// known to go back to that the program has not done itself.
std::string way_back_sentence(const Json& report, const Json& alarm);
// "0.7  3.5  81  Inf", the last good steps, where the value grew at least tenfold; empty otherwise.
std::string drift(const Json& history, const char* key);

}  // namespace finitude::show
