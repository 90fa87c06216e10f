// See edits.h.
#include "explain/edits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "explain/origin.h"
#include "explain/singular.h"

namespace finitude::explain {
namespace {

using record::kNone;
using replay::Edit;

// As it is to be written in the program: 1.000001 is not 1.
std::string written_number(double value) {
  char text[32];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::fabs(std::strtod(text, nullptr) - value) <= 1e-12 * std::fabs(value)) break;
  }
  return text;
}

// Parts of an op come from where it comes from.
const record::Frame* line_around(const record::Trace& trace, record::OpId id) {
  for (int depth = 0; id < trace.ops.size() && depth < 16; ++depth, id = trace.ops[id].parent)
    if (const auto* line = top_frame(trace, trace.ops[id].stack)) return line;
  return nullptr;
}

std::vector<record::OpId> calls_like(const record::Trace& trace, record::OpId call) {
  std::vector<record::OpId> calls{call};
  const record::Op& op = trace.ops[call];
  const auto* line = line_around(trace, call);
  if (!line) return calls;
  for (record::OpId id = 0; id < trace.ops.size(); ++id) {
    const record::Op& other = trace.ops[id];
    if (id == call || other.is_node || other.name != op.name) continue;
    const auto* place = line_around(trace, id);
    if (place && place->line == line->line && place->file == line->file && place->site == line->site)
      calls.push_back(id);
  }
  return calls;
}

record::OpId call_to_mend(const Scene& s) {
  const bool own_lines = s.node && !is_builtin_node(*s.node);
  if (s.backward && s.culprit == s.birth.op && s.forward && !own_lines) return s.birth.forward;
  return s.culprit;
}

}  // namespace

double in_two_digits(double value) {
  char text[32];
  for (const double at_least : {value, value * 1.05}) {
    std::snprintf(text, sizeof text, "%.1e", at_least);
    if (std::strtod(text, nullptr) >= value) break;
  }
  return std::strtod(text, nullptr);
}

// "the self of log".
std::string Edits::operand_words(std::string_view arg) const {
  const record::Op* op = call();
  return std::string(arg) + (op ? " of " + plain_name(op->name) : std::string());
}

Edits::Edits(const Scene& scene) : Edits(scene, call_to_mend(scene)) {}

Edits::Edits(const Scene& scene, record::OpId call) : scene_(scene), call_(call) {
  if (call < scene.trace.ops.size()) calls_ = calls_like(scene.trace, call);
}

const record::Op* Edits::call() const { return call_ < scene_.trace.ops.size() ? &scene_.trace.ops[call_] : nullptr; }

sense::DType Edits::dtype_of(std::string_view arg) const {
  const record::Op* op = call();
  return op ? operand(*op, arg, 0).dtype() : sense::DType::kOther;
}

bool Edits::writes(std::string_view arg) const {
  const record::Op* op = call();
  return op && arg == "self" && op->name.ends_with('_');
}

void Edits::add(Edit edit, const std::string& how) {
  const record::Op* op = call();
  if (!op) return;
  if (!edit.arg.empty() && !operand(*op, edit.arg, op->inputs.size())) return;
  edit.ops = calls_;
  edit.how = how;
  edits_.push_back(std::move(edit));
}

Edits& Edits::clamp(std::string_view arg, double min, double max) {
  const bool below = std::isfinite(min), above = std::isfinite(max);
  Edit edit;
  edit.arg = arg;
  const std::string clamp = writes(arg) ? ".clamp_" : ".clamp";
  if (below) edit.min = min;
  if (above) edit.max = max;
  if (below && above) {
    edit.text = edit.arg + " clamped to [" + written_number(min) + ", " + written_number(max) + "]";
    edit.code = clamp + "(" + written_number(min) + ", " + written_number(max) + ")";
  } else if (below) {
    edit.text = edit.arg + " clamped at " + written_number(min);
    edit.code = clamp + "(min=" + written_number(min) + ")";
  } else {
    edit.text = edit.arg + " clamped to at most " + written_number(max);
    edit.code = clamp + "(max=" + written_number(max) + ")";
  }
  const std::string how = "clamp " + operand_words(arg) + " before that call: " + edit.code.substr(1);
  add(std::move(edit), how);
  return *this;
}

Edits& Edits::at_least(std::string_view arg, double min) {
  return clamp(arg, min, std::numeric_limits<double>::infinity());
}

Edits& Edits::at_most(std::string_view arg, double max) {
  return clamp(arg, -std::numeric_limits<double>::infinity(), max);
}

Edits& Edits::between(std::string_view arg, double min, double max) { return clamp(arg, min, max); }

Edits& Edits::inside(std::string_view arg, double low, double high) {
  const sense::DType dtype = dtype_of(arg);
  const double margin =
      dtype == sense::DType::kOther ? 1e-6 : std::max(1e-6, in_two_digits(4 * sense::info(dtype).epsilon));
  if (!std::isfinite(high)) return at_least(arg, low + margin);
  return between(arg, low + margin, high - margin);
}

Edits& Edits::replaced(std::string_view arg, double from, double to) {
  Edit edit;
  edit.kind = Edit::Kind::kReplace;
  edit.arg = arg;
  edit.from = from;
  edit.to = to;
  edit.text = figure(from) + " in " + edit.arg + " replaced by " + figure(to);
  if (from == 0)
    edit.code =
        writes(arg) ? ".masked_fill_({x} == 0, " + figure(to) + ")" : "torch.where({x} == 0, " + figure(to) + ", {x})";
  if (std::isnan(from) && !writes(arg)) edit.code = "torch.where(torch.isnan({x}), " + figure(to) + ", {x})";
  add(std::move(edit), "put " + figure(to) + " in the place of " + figure(from) + " in " + operand_words(arg) +
                           " before that call, with torch.where");
  return *this;
}

Edits& Edits::filled(const record::TensorUse& operand, double to) {
  const sense::Health& health = operand.health;
  const bool nan = health.nan != 0, above = health.pos_inf != 0, below = health.neg_inf != 0;
  if (nan + above + below < 2) return replaced(operand.arg, nan ? NAN : below ? -INFINITY : INFINITY, to);
  Edit edit;
  edit.kind = Edit::Kind::kReplace;
  edit.arg = operand.arg;
  edit.from_any_bad = true;
  edit.to = to;
  const std::string what = nan ? "NaN and infinities" : "infinities";
  edit.text = what + " in " + edit.arg + " replaced by " + figure(to);
  if (!writes(edit.arg)) edit.code = "torch.where(torch.isfinite({x}), {x}, " + figure(to) + ")";
  const std::string how = "put " + figure(to) + " in the place of " + what + " in " + operand_words(edit.arg) +
                          " before that call, with torch.where";
  add(std::move(edit), how);
  return *this;
}

Edits& Edits::above(std::string_view arg, double edge) {
  const sense::DType dtype = dtype_of(arg);
  if (edge != 0) return inside(arg, edge, INFINITY);
  at_least(arg, in_two_digits(safe_floor(dtype)));
  if (dtype != sense::DType::kOther) at_least(arg, in_two_digits(sense::info(dtype).min_normal));
  return *this;
}

Edits& Edits::less_maximum(std::string_view arg, const std::vector<std::int64_t>& dims, record::OpId added_to) {
  std::string list;
  for (const std::int64_t dim : dims) list += (list.empty() ? "" : ", ") + std::to_string(dim);
  if (dims.size() > 1) list = "(" + list + ")";
  const std::string maximum = dims.empty() ? ".max()" : ".amax(" + list + ", keepdim=True)";
  Edit edit;
  edit.kind = Edit::Kind::kShift;
  edit.arg = arg;
  edit.dims = dims;
  edit.text = edit.arg + " less its maximum" + (dims.empty() ? "" : " along dimension " + list);
  edit.added_to = added_to;
  if (added_to != kNone)
    edit.text += ", and added to the logarithm";
  else if (!writes(arg))
    edit.code = "{x} - {x}" + maximum;
  add(std::move(edit), "subtract the maximum from " + operand_words(arg) + " before that call: " + edit.arg + " - " +
                           edit.arg + maximum);
  if (added_to != kNone && !edits_.empty()) edits_.back().ops = {call_};  // the logarithm is of that one
  return *this;
}

Edits& Edits::bounded(std::string_view arg) {
  const sense::DType dtype = dtype_of(arg);
  if (dtype == sense::DType::kOther) return *this;
  const double limit = sense::info(dtype).max_finite;
  Edit edit;
  edit.arg = arg;
  edit.min = -limit;
  edit.max = limit;
  edit.text = "infinities in " + edit.arg + " replaced by the largest finite number";
  if (!writes(arg)) edit.code = ".clamp(torch.finfo({x}.dtype).min, torch.finfo({x}.dtype).max)";
  add(std::move(edit), "put the largest finite number of the format in the place of infinities in " +
                           operand_words(arg) + " before that call");
  return *this;
}

Edits& Edits::left_out(double fill, std::string switch_on) {
  Edit edit;
  edit.kind = Edit::Kind::kLeaveOut;
  edit.to = fill;
  const record::Op* op = call();
  edit.text = "inputs for which " + (op ? plain_name(op->name) : std::string("it")) +
              " has no value or derivative masked with torch.where, before and after" +
              (fill == 0 ? std::string() : ", filled with " + figure(fill));
  if (!switch_on.empty()) edit.text = switch_on + "=True";
  edit.switch_on = std::move(switch_on);
  const std::string name = op ? plain_name(op->name) : std::string("that call");
  const std::string how = !edit.switch_on.empty()
                              ? edit.switch_on + "=True in " + name
                              : "where " + name +
                                    " has no value or no derivative, choose with torch.where: another value before the "
                                    "call, and after it " +
                                    figure(fill) + " for what is not finite, else what it was as a constant";
  add(std::move(edit), how);
  return *this;
}

Edits& Edits::named_by_rule(std::size_t count) {
  for (std::size_t i = 0; i < std::min(count, edits_.size()); ++i) edits_[i].how.clear();
  return *this;
}

Edits& Edits::advised(std::string advice, std::string text) {
  if (edits_.empty()) return *this;
  edits_.back().advice = std::move(advice);
  edits_.back().how.clear();
  if (!text.empty()) edits_.back().text = std::move(text);
  return *this;
}

Edits& Edits::computed_in(sense::DType dtype) {
  Edit edit;
  edit.kind = Edit::Kind::kCompute;
  edit.dtype = dtype;
  edit.text = "the whole step in " + dtype_name(dtype);
  add(std::move(edit), "compute in " + dtype_name(dtype) + " from this line on, as it was tried with the whole step");
  return *this;
}

namespace {

// " (train.py:14, train.py:30)"; empty where only one line is known.
std::string lines_of(const record::Trace& trace, const std::vector<record::OpId>& calls) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> lines;
  for (const record::OpId id : calls) {
    const record::Frame* line = line_around(trace, id);
    if (!line) continue;
    std::string place = line->file.substr(line->file.rfind('/') + 1) + ":" + std::to_string(line->line);
    if (std::ranges::find(lines, place) == lines.end()) lines.push_back(std::move(place));
  }
  if (lines.size() < 2) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kShown); ++i) text += (i ? ", " : " (") + lines[i];
  if (lines.size() > kShown) text += " and " + std::to_string(lines.size() - kShown) + " more";
  return text + ")";
}

}  // namespace

void also_at_other_births(Finding& finding, const Evidence& evidence) {
  if (finding.edits.empty() || finding.edits.front().ops.empty()) return;
  const record::Trace& trace = evidence.trace;
  const std::vector<record::OpId> known = finding.edits.front().ops;
  if (known.front() >= trace.ops.size()) return;
  std::vector<record::OpId> more;
  for (const auto& birth : evidence.located.births) {
    const record::OpId call = birth.forward != kNone && birth.kind == "backward" ? birth.forward : birth.op;
    if (call >= trace.ops.size() || trace.ops[call].name != trace.ops[known.front()].name) continue;
    for (const record::OpId id : calls_like(trace, call)) {
      if (std::find(known.begin(), known.end(), id) == known.end() &&
          std::find(more.begin(), more.end(), id) == more.end())
        more.push_back(id);
    }
  }
  if (more.empty()) return;
  std::vector<Edit> widened = finding.edits;
  std::erase_if(widened, [](const Edit& edit) { return !edit.args.empty(); });  // of several operators as it is
  for (Edit& edit : widened) {
    edit.ops.insert(edit.ops.end(), more.begin(), more.end());
    edit.text += ", at every birth of this kind";
    edit.also = ", at each line that makes such a value" + lines_of(trace, edit.ops);
    edit.code.clear();  // of several lines
  }
  finding.edits.insert(finding.edits.end(), widened.begin(), widened.end());
}

namespace {

struct Reader {
  record::OpId call;
  std::string arg;
  bool is_written;
};

// The other calls that read what `known` read in `arg` of the first of them, before anything is written there.
std::vector<Reader> other_readers(const record::Trace& trace, const std::vector<record::OpId>& known,
                                  const std::string& arg) {
  std::vector<Reader> readers;
  if (known.empty() || known.front() >= trace.ops.size()) return readers;
  const record::Op& first = trace.ops[known.front()];
  const auto* read = operand(first, arg, first.inputs.size()).tensor;
  if (!read || read->storage == kNone) return readers;
  for (record::OpId id = 0; id < trace.ops.size(); ++id) {
    const record::Op& op = trace.ops[id];
    if (op.is_node || op.phase != first.phase || op.node != first.node || std::ranges::find(known, id) != known.end())
      continue;
    const record::TensorUse* found = nullptr;  // of x / x the operand of that name
    for (const auto& use : op.inputs) {
      if (use.storage == read->storage && use.begin == read->begin && use.end == read->end && !use.arg.empty() &&
          same_values(use.health, read->health) && (!found || use.arg == arg))
        found = &use;
    }
    if (found) readers.push_back({id, found->arg, found->written});
  }
  return readers;
}

}  // namespace

void also_where_it_is_read_again(Finding& finding, const Evidence& evidence) {
  if (finding.edits.empty() || finding.edits.front().ops.empty() || finding.edits.front().arg.empty()) return;
  const record::Trace& trace = evidence.trace;
  const std::string arg = finding.edits.front().arg;
  const std::vector<record::OpId> known = finding.edits.front().ops;
  std::vector<record::OpId> more;
  for (const Reader& reader : other_readers(trace, known, arg))
    if (reader.arg == arg && trace.ops[reader.call].name == trace.ops[known.front()].name) more.push_back(reader.call);
  if (more.empty()) return;
  std::vector<Edit> widened = finding.edits;
  std::erase_if(widened, [&](const Edit& edit) { return edit.arg != arg || !edit.args.empty() || edit.ops != known; });
  for (Edit& edit : widened) {
    edit.ops.insert(edit.ops.end(), more.begin(), more.end());
    edit.text += ", at every call that reads the same";
    edit.also = ", at each line that reads it so" + lines_of(trace, edit.ops);
    edit.code.clear();  // of several calls
  }
  finding.edits.insert(finding.edits.end(), widened.begin(), widened.end());
}

namespace {

// Do the births come from this call, or is it the forward of one?
bool is_birth(const Evidence& evidence, record::OpId call) {
  const auto within = [&](record::OpId id) {
    for (int depth = 0; id < evidence.trace.ops.size() && depth < 16; ++depth, id = evidence.trace.ops[id].parent)
      if (id == call) return true;
    return false;
  };
  return std::ranges::any_of(evidence.located.births,
                             [&](const locate::Birth& b) { return within(b.op) || within(b.forward); });
}

bool fills(const Edit& edit) {
  return edit.kind == Edit::Kind::kReplace && (edit.from_any_bad || !std::isfinite(edit.from));
}

std::string numbered(const std::vector<std::size_t>& numbers, std::size_t of) {
  constexpr std::size_t kShown = 3;
  std::string text = numbers.size() == 1 ? "call " : "calls ";
  for (std::size_t i = 0; i < std::min(numbers.size(), kShown); ++i)
    text += (i ? ", " : "") + std::to_string(numbers[i] + 1);
  if (numbers.size() > kShown) text += " and " + std::to_string(numbers.size() - kShown) + " more";
  return text + " of the " + std::to_string(of) + " from that line";
}

}  // namespace

void also_at_other_readers(Finding& finding, const Evidence& evidence) {
  const record::Trace& trace = evidence.trace;
  const auto changes = [](const Edit& edit) {
    return edit.changes_argument() && edit.args.empty() && !edit.ops.empty();
  };
  auto first = std::ranges::find_if(finding.edits, [&](const Edit& edit) { return changes(edit) && fills(edit); });
  const bool is_bad = first != finding.edits.end();
  if (!is_bad) first = std::ranges::find_if(finding.edits, changes);
  if (first == finding.edits.end() || first->ops.front() >= trace.ops.size() || first->kind == Edit::Kind::kShift)
    return;
  if (trace.ops[first->ops.front()].phase != record::Phase::kForward) return;
  Edit edit = *first;
  edit.args.assign(edit.ops.size(), edit.arg);
  for (const Reader& reader : other_readers(trace, first->ops, first->arg)) {
    const record::Op& op = trace.ops[reader.call];
    // Of a call and its parts the call is enough. A number at which one operator has no value may be right for others.
    if (op.is_view || reader.is_written || std::ranges::find(edit.ops, op.parent) != edit.ops.end()) continue;
    if (!is_bad && !is_birth(evidence, reader.call)) continue;
    edit.ops.push_back(reader.call);
    edit.args.push_back(reader.arg);
  }
  if (edit.ops.size() == first->ops.size()) return;
  edit.text += is_bad ? ", at every call that reads the same" : ", at every birth that reads the same";
  edit.also = (is_bad ? ", at each line that reads it so" : ", and at each call that fails on the same values") +
              lines_of(trace, edit.ops);
  edit.code.clear();  // of several calls
  finding.edits.push_back(std::move(edit));
}

void also_at_guilty_calls(Finding& finding, const std::vector<Edit>& wide, const Evidence& evidence) {
  for (const Edit& edit : wide) {
    if (edit.ops.size() < 2 || edit.kind == Edit::Kind::kCompute || !edit.args.empty()) continue;
    std::vector<record::OpId> calls = edit.ops;
    std::ranges::sort(calls);
    Edit narrow = edit;
    narrow.ops.clear();
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i] != edit.ops.front() && !is_birth(evidence, calls[i])) continue;
      narrow.ops.push_back(calls[i]);
      numbers.push_back(i);
    }
    if (narrow.ops.size() == calls.size()) continue;
    narrow.text += ", in " + numbered(numbers, calls.size());
    narrow.also = ", only in " + numbered(numbers, calls.size());
    narrow.code.clear();  // the line computes the others as well
    finding.edits.push_back(std::move(narrow));
  }
}

void Edits::into(Finding& finding) const { finding.edits.insert(finding.edits.end(), edits_.begin(), edits_.end()); }

}  // namespace finitude::explain
