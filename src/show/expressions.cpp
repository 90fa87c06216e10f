#include "show/expressions.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace finitude::show {
namespace {

constexpr std::size_t kMostExpression = 80;

std::string whole_line(const std::string& file, int line) {
  constexpr int kMaxLine = 1'000'000;
  if (line <= 0 || line > kMaxLine) return {};
  std::ifstream in(file);
  std::string text;
  for (int i = 0; i < line; ++i) {
    if (!std::getline(in, text)) return {};
  }
  return text;
}

// The user's frame of an op, where it is known which expression of one line it is.
const record::Frame* frame_in_line(const record::Trace& trace, const record::Op& op) {
  if (op.stack >= trace.stacks.size() || trace.stacks[op.stack].frames.empty()) return nullptr;
  const record::Frame* const frame = &trace.stacks[op.stack].frames.front();
  return frame->end_column > frame->column && frame->end_line == frame->line ? frame : nullptr;
}

std::string expression_at(const record::Frame& frame) {
  const std::string line = whole_line(frame.file, frame.line);
  const auto begin = static_cast<std::size_t>(std::max(frame.column, 0));
  const auto size = static_cast<std::size_t>(frame.end_column) - begin;  // in bytes, as Python counts columns
  return begin < line.size() && size <= kMostExpression ? line.substr(begin, size) : std::string();
}

// What a division in Python divides by: behind the last "/" that is in no brackets. Empty: there is none.
std::string divisor_in(const std::string& expression) {
  int depth = 0;
  std::size_t last = std::string::npos;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '"' || c == '\'') return {};  // a text may hold anything
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (c == '/' && depth == 0) last = i;
  }
  if (last == std::string::npos) return {};
  const std::size_t begin = expression.find_first_not_of(" =", last + 1);
  const std::size_t end = expression.find_last_not_of(' ');
  return begin == std::string::npos ? std::string() : expression.substr(begin, end - begin + 1);
}

bool is_literal_zero(std::string_view word) {
  return !word.empty() && word.find('0') != std::string_view::npos &&
         word.find_first_not_of("0.") == std::string_view::npos;
}

}  // namespace

std::string source_line(const std::string& file, int line) {
  constexpr std::size_t kMaxLength = 400;
  const std::string text = whole_line(file, line);
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  const auto last = text.find_last_not_of(" \t\r\n;");
  return text.substr(first, std::min(last - first + 1, kMaxLength));
}

std::string divisor_of(const record::Trace& trace, record::OpId id) {
  if (id >= trace.ops.size()) return {};
  const record::Frame* const frame = frame_in_line(trace, trace.ops[id]);
  const std::string divisor = frame != nullptr ? divisor_in(expression_at(*frame)) : std::string();
  if (divisor.empty()) return {};
  // (0 if step > 5 else 1): the constant is in the line, whatever chooses it.
  const std::string inside =
      divisor.front() == '(' && divisor.back() == ')' ? divisor.substr(1, divisor.size() - 2) : divisor;
  const std::size_t choice = inside.find(" if "), otherwise = inside.rfind(" else ");
  const bool chosen = choice != std::string::npos && otherwise != std::string::npos &&
                      (is_literal_zero(inside.substr(0, choice)) || is_literal_zero(inside.substr(otherwise + 6)));
  return is_literal_zero(inside) || chosen ? kConstantZero : divisor;
}

std::string expression_of(const record::Trace& trace, record::OpId id) {
  const auto frame_of = [&](const record::Op& op) { return frame_in_line(trace, op); };
  if (id >= trace.ops.size()) return {};
  const record::Op& op = trace.ops[id];
  const record::Frame* const frame = frame_of(op);
  if (frame == nullptr) return {};
  const bool is_one_of_several = std::ranges::any_of(trace.ops, [&](const record::Op& other) {
    const record::Frame* const at = other.name == op.name && other.phase == op.phase ? frame_of(other) : nullptr;
    return at != nullptr && at->line == frame->line && at->column != frame->column && at->file == frame->file;
  });
  return is_one_of_several ? expression_at(*frame) : std::string();
}

}  // namespace finitude::show
