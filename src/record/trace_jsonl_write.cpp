// Writes a trace as JSON lines, without building JSON values: traces have hundreds of thousands of ops.
#include <cmath>

#include "record/json_writer.h"
#include "record/trace_jsonl.h"
#include "record/trace_words.h"

namespace finitude::record {
namespace {

void write(JsonWriter& w, const TensorUse& use) {
  w.open('{');
  if (!use.arg.empty()) w.field("arg", use.arg);
  w.field("dtype", sense::info(use.dtype).name);
  w.key("shape");
  w.open('[');
  for (const auto d : use.shape) w.number(d);
  w.close(']');
  w.id("storage", use.storage);
  w.field("begin", use.begin);
  w.field("end", use.end);
  if (!use.dense) w.flag("strided");
  if (use.written) w.flag("written");
  if (use.requires_grad) w.flag("requires_grad");
  const sense::Health& h = use.health;
  if (h.numel != 0) {
    w.field("numel", h.numel);
    w.field("min", h.min);
    w.field("max", h.max);
    w.field("absmax", h.absmax);
    w.field("sum_sq", h.sum_sq);
    w.field("nan", h.nan);
    w.field("inf", h.inf());
    if (h.inf() != 0) w.field("neg_inf", h.neg_inf);
    w.field("zero", h.zero);
    if (h.subnormal != 0) w.field("subnormal", h.subnormal);
  }
  if (use.first_bad != -1) w.field("first_bad", use.first_bad);
  if (!use.bad_rows.empty()) {
    w.key("bad_rows");
    w.open('[');
    for (const auto row : use.bad_rows) w.number(row);
    w.close(']');
  }
  w.close('}');
}

void write(JsonWriter& w, std::string_view name, const std::vector<TensorUse>& uses) {
  w.key(name);
  w.open('[');
  for (const auto& use : uses) write(w, use);
  w.close(']');
}

// How much larger the output is than the largest input; nothing where that says nothing.
void write_growth(JsonWriter& w, const Op& op) {
  double in = 0, out = 0;
  bool any_in = false, any_out = false;
  const auto take = [](const TensorUse& use, double* largest, bool* any) {
    if (use.health.finite() == 0) return;
    *any = true;
    *largest = std::max(*largest, use.health.absmax);
  };
  for (const auto& use : op.inputs) take(use, &in, &any_in);
  for (const auto& use : op.outputs) take(use, &out, &any_out);
  if (!any_in || !any_out || (in == 0 && out == 0)) return;
  w.field("growth", in == 0 ? HUGE_VAL : out / in);
}

void write(JsonWriter& w, const Trace& trace, std::size_t index) {
  const Op& op = trace.ops[index];
  w.open('{');
  w.field("id", index);
  w.field("phase", kPhaseWords[static_cast<std::size_t>(op.phase)]);
  w.field("op", op.name);
  if (op.stack < trace.stacks.size()) {
    const Stack& stack = trace.stacks[op.stack];
    if (!stack.frames.empty()) {
      w.field("file", stack.frames[0].file);
      w.field("line", stack.frames[0].line);
    }
    if (!stack.module.empty()) w.field("module", stack.module);
    w.field("stack", op.stack);
  }
  w.id("parent", op.parent);
  w.id("node", op.node);
  w.id("forward", op.forward);
  w.field("end", op.end_order);
  w.field("micro_batch", op.micro_batch);
  for (const auto& [word, flag] : kFlagWords) {
    if (op.*flag) w.flag(word);
  }
  write_growth(w, op);
  write(w, "inputs", op.inputs);
  write(w, "outputs", op.outputs);
  if (!op.scalars.empty()) {
    w.key("scalars");
    w.open('[');
    for (const auto& scalar : op.scalars) {
      w.open('{');
      w.field("arg", scalar.arg);
      w.field("text", scalar.text);
      if (scalar.number) w.field("number", *scalar.number);
      if (scalar.tensor_like) w.flag("tensor_like");
      w.close('}');
    }
    w.close(']');
  }
  w.close('}');
  w.end_line();
}

void write_storages(JsonWriter& w, const std::vector<Storage>& storages) {
  w.field("storages", storages.size());
  w.key("origins");  // of those that are known
  w.open('[');
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Storage& s = storages[i];
    if (s.origin == Origin::kUnknown && s.name.empty() && s.stack == kNone) continue;
    w.open('{');
    w.field("storage", i);
    w.field("origin", kOriginWords[static_cast<std::size_t>(s.origin)]);
    if (!s.name.empty()) w.field("name", s.name);
    w.id("stack", s.stack);
    w.close('}');
  }
  w.close(']');
}

void write_header(JsonWriter& w, const Trace& trace) {
  w.open('{');
  w.field("finitude_trace", kTraceFormat);
  w.field("ops", trace.ops.size());
  if (trace.truncated) w.flag("truncated");
  write_storages(w, trace.storages);
  w.key("stacks");
  w.open('[');
  for (const Stack& stack : trace.stacks) {
    w.open('{');
    if (!stack.module.empty()) w.field("module", stack.module);
    if (!stack.statement_context.empty()) w.field("statement_context", stack.statement_context);
    w.key("frames");
    w.open('[');
    for (const Frame& frame : stack.frames) {
      w.open('{');
      w.field("file", frame.file);
      w.field("line", frame.line);
      w.field("function", frame.function);
      w.close('}');
    }
    w.close(']');
    w.close('}');
  }
  w.close(']');
  w.key("sinks");
  w.open('[');
  for (const Sink& sink : trace.sinks) {
    w.open('{');
    w.field("kind", sink.kind);
    w.field("name", sink.name);
    w.id("at_end", sink.at_end_order);
    w.field("micro_batch", sink.micro_batch);
    w.key("value");
    write(w, sink.value);
    w.close('}');
  }
  w.close(']');
  w.close('}');
  w.end_line();
}

}  // namespace

std::string to_jsonl(const Trace& trace) {
  JsonWriter w;
  write_header(w, trace);
  for (std::size_t i = 0; i < trace.ops.size(); ++i) write(w, trace, i);
  return w.take();
}

}  // namespace finitude::record
