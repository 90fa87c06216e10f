#include "replay/tape_calls.h"

#include <algorithm>
#include <charconv>

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::Tape;

constexpr char kList[] = " (--step-through lists all calls)";

bool number(std::string_view text, std::size_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool is_called(const capture::Operator& op, std::string_view word) {
  const std::string full = op.overload.empty() ? op.name : op.name + "." + op.overload;
  for (const std::string& name : {op.name, full}) {
    if (word == name || (name.starts_with("aten::") && word == std::string_view(name).substr(6))) return true;
  }
  return false;
}

}  // namespace

std::string call_name(const Tape& tape, std::size_t index) {
  const Entry& entry = tape.entries.at(index);
  if (entry.kind == Entry::kRandom) return "state of a generator";
  if (entry.kind == Entry::kFill) return "memory written by no operator";
  if (entry.number >= tape.operators.size()) return "?";
  const capture::Operator& op = tape.operators[entry.number];
  return op.overload.empty() ? op.name : op.name + "." + op.overload;
}

std::string place_of(const Tape& tape, std::size_t index) {
  const Entry& entry = tape.entries.at(index);
  if (entry.place >= tape.places.size()) return "";
  const capture::Place& place = tape.places[entry.place];
  const std::string name = place.file.substr(place.file.rfind('/') + 1);
  std::string text =
      "  " + std::string(entry.of_backward ? "backward of " : "") + name + ":" + std::to_string(place.line);
  if (!place.source.empty()) text += "  " + place.source;
  // A tape may come from anybody: nothing in it reaches a terminal but what can be printed.
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

bool gives_fresh_memory(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name == "aten::resize_";
}

namespace {

bool is_in_module(const std::string& module, std::string_view word) {
  if (module.empty() || word.empty()) return false;
  const auto begins = [](std::string_view name, std::string_view with) {
    return name == with || (name.starts_with(with) && name[with.size()] == '.');
  };
  const std::size_t dot = module.find('.');  // behind the class of the root
  return begins(module, word) || (dot != std::string::npos && begins(std::string_view(module).substr(dot + 1), word));
}

bool is_at_line(const capture::Place& place, std::string_view word) {
  const std::size_t colon = word.rfind(':');
  std::size_t line = 0;
  if (colon == std::string_view::npos || !number(word.substr(colon + 1), &line) || line != place.line) return false;
  const std::string_view file = word.substr(0, colon), whole = place.file;
  return whole == file || (whole.ends_with(file) && whole[whole.size() - file.size() - 1] == '/');
}

}  // namespace

std::vector<std::size_t> find_calls(const Tape& tape, std::string_view word, std::string* why) {
  std::size_t one = 0;
  if (number(word, &one) || word.find('#') != std::string_view::npos) {
    const auto found = find_call(tape, word, why);
    return found ? std::vector<std::size_t>{*found} : std::vector<std::size_t>{};
  }
  std::vector<std::size_t> calls;
  for (std::size_t i = 0; i < tape.entries.size(); ++i) {
    const Entry& entry = tape.entries[i];
    if (entry.kind != Entry::kCall || entry.number >= tape.operators.size()) continue;
    const bool has_place = entry.place < tape.places.size();
    if (is_called(tape.operators[entry.number], word) ||
        (has_place &&
         (is_at_line(tape.places[entry.place], word) || is_in_module(tape.places[entry.place].module, word))))
      calls.push_back(i);
  }
  if (calls.empty()) *why = "no call of the step is of an operator, a line or a module " + std::string(word) + kList;
  return calls;
}

std::optional<std::size_t> find_call(const Tape& tape, std::string_view word, std::string* why) {
  std::size_t index = 0;
  if (number(word, &index)) {
    if (index < tape.entries.size() && tape.entries[index].kind == Entry::kCall) return index;
    *why =
        (index < tape.entries.size()
             ? "number " + std::string(word) + " of the step is " + call_name(tape, index) + ", no call"
             : "the last number of the step is " + std::to_string(std::max<std::size_t>(tape.entries.size(), 1) - 1)) +
        kList;
    return std::nullopt;
  }
  std::size_t wanted = 1, seen = 0;
  const std::size_t mark = word.rfind('#');
  if (mark != std::string_view::npos && (!number(word.substr(mark + 1), &wanted) || wanted == 0)) {
    *why = "behind # belongs which call is meant, 1 being the first";
    return std::nullopt;
  }
  const std::string_view name = word.substr(0, mark);
  for (std::size_t i = 0; i < tape.entries.size(); ++i) {
    const Entry& entry = tape.entries[i];
    if (entry.kind != Entry::kCall || entry.number >= tape.operators.size() ||
        !is_called(tape.operators[entry.number], name))
      continue;
    if (++seen == wanted) return i;
  }
  *why = seen == 0 ? "the step does not call " + std::string(name) + ", or that is made of calls of other names" + kList
                   : "the step calls " + std::string(name) + " only " + std::to_string(seen) + " times";
  return std::nullopt;
}

}  // namespace finitude::replay
