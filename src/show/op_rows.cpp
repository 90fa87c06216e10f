#include "show/op_rows.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "record/json_writer.h"
#include "record/reported_range.h"
#include "record/trace_words.h"
#include "show/findings.h"

namespace finitude::show {
namespace {

using record::JsonWriter;

void write_count(JsonWriter& w, std::string_view name, std::uint64_t count) {
  if (count != 0) w.field(name, count);
}

void write(JsonWriter& w, const record::Trace& trace, const record::TensorUse& use, bool is_input,
           const record::KeptValue* kept, const std::string& name) {
  const sense::Health& h = use.health;
  w.open('{');
  if (!use.arg.empty()) w.field("arg", use.arg);
  w.key("shape");
  w.open('[');
  for (const auto size : use.shape) w.number(size);
  w.close(']');
  w.field("dtype", dtype_name(use.dtype));
  if (record::has_range(h)) {
    w.field("min", h.min);
    w.field("max", h.max);
    w.field("absmax", h.absmax);
    if (h.numel != 0) w.field("sum_sq", h.sum_sq);
  }
  w.field("nan", h.nan);
  w.field("inf", h.inf());
  write_count(w, "pos_inf", h.pos_inf);
  write_count(w, "neg_inf", h.neg_inf);
  write_count(w, "zero", h.zero);
  write_count(w, "subnormal", h.subnormal);
  w.field("numel", h.numel);
  if (use.storage != record::kNone) {
    w.field("storage", use.storage);
    w.field("begin", use.begin);
    w.field("end", use.end);
  }
  if (is_input && use.storage < trace.storages.size()) {
    const record::Storage& storage = trace.storages[use.storage];
    if (!storage.name.empty()) w.field("text", storage.name);
    if (h.numel == 1 && storage.origin == record::Origin::kConstant) w.flag("constant");
  }
  if (kept != nullptr && kept->checksum) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016" PRIx64, *kept->checksum);
    w.field("checksum", digits);
    if (!name.empty()) w.field("values", name);
  }
  w.close('}');
}

// The names of values; what is alike has one.
struct Names {
  std::vector<NamedValue>& values;
  std::map<std::tuple<const std::string*, int, std::vector<std::int64_t>>, std::string> known;

  std::string of(const record::TensorUse& use, const record::KeptValue& value, const std::string& own) {
    if (value.bytes == nullptr) return {};
    const auto [at, is_new] = known.try_emplace({value.bytes.get(), value.scalar_type, use.shape}, own);
    if (is_new) values.push_back({own, &use, &value});
    return at->second;
  }
};

void write_side(JsonWriter& w, const record::Trace& trace, const record::Op& op, bool is_input, bool is_wanted,
                const record::KeptCall* kept, std::size_t row, Names* names) {
  w.key(is_input ? "inputs" : "outputs");
  w.open('[');
  const std::vector<record::TensorUse>& uses = is_input ? op.inputs : op.outputs;
  for (std::size_t i = 0; is_wanted && i < uses.size(); ++i) {
    const std::vector<record::KeptValue>* of_side = kept == nullptr ? nullptr
                                                    : is_input      ? &kept->inputs
                                                                    : &kept->outputs;
    const record::KeptValue* value = of_side != nullptr && i < of_side->size() ? &(*of_side)[i] : nullptr;
    const std::string own =
        std::to_string(row) + "." + op.name + (is_input ? ".input." : ".output.") + std::to_string(i);
    write(w, trace, uses[i], is_input, value, value != nullptr ? names->of(uses[i], *value, own) : "");
  }
  w.close(']');
}

void write_place(JsonWriter& w, const record::Trace& trace, const record::Op& op, bool with_stack) {
  if (op.stack >= trace.stacks.size() || trace.stacks[op.stack].frames.empty()) return;
  const record::Stack& stack = trace.stacks[op.stack];
  w.field("file", stack.frames[0].file);
  w.field("line", stack.frames[0].line);
  if (!stack.module.empty()) w.field("module", stack.module);
  if (!with_stack) return;
  w.key("stack");
  w.open('[');
  for (const record::Frame& one : stack.frames)
    w.text(one.file + ":" + std::to_string(one.line) + " in " + one.function);
  w.close(']');
}

void write_scalars(JsonWriter& w, const record::Op& op) {
  bool any = false;
  for (const auto& scalar : op.scalars) {
    if (scalar.text.empty() || scalar.text == "None") continue;
    if (!any) {
      w.key("scalars");
      w.open('[');
      any = true;
    }
    w.open('{');
    w.field("arg", scalar.arg);
    w.field("text", scalar.text);
    w.close('}');
  }
  if (any) w.close(']');
}

void write(JsonWriter& w, const record::Trace& trace, const record::Op& op, const RowParts& parts,
           const record::KeptCall* kept, std::size_t row, Names* names) {
  w.open('{');
  w.field("op", op.name);
  w.field("phase", record::kPhaseWords[static_cast<std::size_t>(op.phase)]);
  w.field("micro_batch", op.micro_batch);
  write_place(w, trace, op, parts.stacks);
  w.field("depth", depth_of(trace, op));
  if (op.is_view) w.flag("view");
  if (op.allocates) w.flag("allocates");
  if (op.random) w.flag("random");
  write_scalars(w, op);
  if (const auto growth = growth_of(op)) w.field("growth", *growth);
  write_side(w, trace, op, true, parts.inputs, kept, row, names);
  write_side(w, trace, op, false, parts.outputs, kept, row, names);
  w.close('}');
}

}  // namespace

OpRows op_rows(const record::Trace& trace, std::span<const record::OpId> ops, const RowParts& parts,
               const record::KeptCalls& kept) {
  OpRows rows;
  Names names{rows.values, {}};
  JsonWriter w;
  w.open('[');
  for (const record::OpId id : ops) {
    const std::size_t before = w.size();
    const std::size_t values = rows.values.size();
    if (rows.ops == parts.most_ops) break;
    const auto found = kept.find(id);
    write(w, trace, trace.ops[id], parts, found == kept.end() ? nullptr : &found->second, rows.ops, &names);
    if (w.size() >= parts.most_bytes) {
      w.cut(before);
      rows.values.resize(values);
      break;
    }
    ++rows.ops;
  }
  w.close(']');
  rows.text = w.take();
  return rows;
}

}  // namespace finitude::show
