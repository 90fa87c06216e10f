#include "pyhost/script_lines_torch.h"

#include <torch/csrc/jit/frontend/source_range.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <exception>
#include <string_view>

#include "pyhost/frames_code.h"

namespace finitude::bindings {
namespace {

using torch::jit::SourceRange;
using torch::jit::StackEntry;

bool is_user_file(const std::string& file) { return file.starts_with('/') && !is_library_file(file); }

// torch.jit.trace notes the Python stack of each operator as text, innermost first: "/home/model.py(12): forward".
// A recorded line is taken only if it has the form "file(line): function". False: the text is no such stack, and the
// caller falls back to the position in the script's source.
bool add_traced(std::string_view text, std::vector<record::Frame>* out) {
  bool any = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() == text.size() ? line.size() : line.size() + 1);
    const auto close = line.rfind("): ");
    const auto open = close == std::string_view::npos ? close : line.rfind('(', close);
    if (open == std::string_view::npos) continue;
    record::Frame frame;
    frame.file = line.substr(0, open);
    for (const char digit : line.substr(open + 1, close - open - 1)) {
      if (digit < '0' || digit > '9' || frame.line > 100'000'000) return any;
      frame.line = frame.line * 10 + (digit - '0');
    }
    frame.function = line.substr(close + 3);
    any = true;
    if (is_user_file(frame.file)) out->push_back(std::move(frame));
  }
  return any;
}

// Compiled code is serialised and inlined, so a range may lie in generated source. The range that it was generated from
// is the one in the user's file.
void add(const StackEntry& entry, std::vector<record::Frame>* out) {
  SourceRange range = entry.range;
  if (!range.source()) return;
  if (auto original = range.findSourceRangeThatGenerated()) range = *std::move(original);
  if (add_traced(range.source()->text_str().str(), out)) return;
  const auto place = range.file_line_col();
  if (!place || !is_user_file(std::get<0>(*place))) return;
  record::Frame frame;
  frame.file = std::get<0>(*place);
  frame.line = static_cast<int>(std::get<1>(*place));
  frame.function = entry.filename;
  out->push_back(std::move(frame));
}

// Formulas are written in Python that has no file: "def sqrt(self): ... def backward(grad_output): ...", overloads as
// "mul_0", and helpers as "AD_sum_backward".
std::string formula_at(const SourceRange& range) {
  if (!range.source()) return {};
  if (const auto place = range.file_line_col(); place && !std::get<0>(*place).starts_with('<')) return {};
  const std::string text = range.source()->text_str().str().substr(0, range.start());
  for (std::size_t at = text.rfind("def "); at != std::string::npos;
       at = at == 0 ? std::string::npos : text.rfind("def ", at - 1)) {
    const std::size_t begin = at + 4, end = text.find('(', begin);
    if (end == std::string::npos) continue;
    std::string name = text.substr(begin, end - begin);
    if (name == "backward") continue;
    if (name.starts_with("AD_")) return {};
    const std::size_t digits = name.find_last_not_of("0123456789");
    if (digits != std::string::npos && digits + 1 < name.size() && name[digits] == '_') name.resize(digits);
    return name;
  }
  return {};
}

}  // namespace

std::string script_derivative() noexcept try {
  for (const StackEntry& entry : torch::jit::currentCallstack()) {
    if (std::string name = formula_at(entry.range); !name.empty()) return name;
  }
  return {};
} catch (const std::exception&) {
  return {};
}

// The addresses identify the place within one trace: a source lives as long as the compiled function.
void add_script_key(std::string* bytes) noexcept try {
  for (const StackEntry& entry : torch::jit::currentCallstack()) {
    const void* source = entry.range.source().get();
    const std::size_t start = entry.range.start();
    bytes->append(reinterpret_cast<const char*>(&source), sizeof source);
    bytes->append(reinterpret_cast<const char*>(&start), sizeof start);
  }
} catch (const std::exception&) {
}

std::vector<record::Frame> script_frames(std::size_t most) noexcept {
  std::vector<record::Frame> frames;
  try {
    for (const StackEntry& entry : torch::jit::currentCallstack()) {
      if (frames.size() >= most) break;
      add(entry, &frames);
    }
  } catch (const std::exception&) {
  }
  return frames;
}

}  // namespace finitude::bindings
