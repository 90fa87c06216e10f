// Words for the calls of a tape: which one is meant by a word, and how one is reported.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

// Where text goes.
using Say = std::function<void(std::string_view)>;

// "aten::add.Tensor"; of an entry that is no call, what it does.
std::string call_name(const capture::Tape& tape, std::size_t index);
// "  train.py:12  loss = torch.log(p)", with "backward of" before it where it is the line of the forward call;
// empty where the tape does not say.
std::string place_of(const capture::Tape& tape, std::size_t index);

// Gives memory that holds whatever was there.
bool gives_fresh_memory(std::string_view op_name);

// The entry that a word means: its index; the name of an operator ("aten::log", "log" or with an overload),
// the first call of it; or "log#3", the third. Nothing, and why, where there is none.
std::optional<std::size_t> find_call(const capture::Tape& tape, std::string_view word, std::string* why);

// All entries that a word means: as find_call() where it is a number or name#k; else all calls of the operator, of the
// line ("model.py:87") or of the module ("Classifier.head", "head"; with the modules in it) that has this name. Empty,
// and why, where there is none.
std::vector<std::size_t> find_calls(const capture::Tape& tape, std::string_view word, std::string* why);

}  // namespace finitude::replay
