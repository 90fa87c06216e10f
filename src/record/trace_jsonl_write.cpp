// Writes a trace as JSON lines, without building JSON values: traces have hundreds of thousands of ops.
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "record/trace_jsonl.h"
#include "record/trace_words.h"

namespace finitude::record {
namespace {

class Writer {
 public:
  void open(char bracket) {
    separate();
    out_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    first_ = false;
  }
  void end_line() {
    out_ += '\n';
    first_ = true;
  }
  void key(std::string_view name) {
    separate();
    out_ += '"';
    out_ += name;
    out_ += "\":";
    first_ = true;
  }
  void text(std::string_view s) {
    separate();
    bool plain = true;
    for (const char c : s) plain &= c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
    if (plain) {
      out_ += '"';
      out_ += s;
      out_ += '"';
    } else {
      out_ += nlohmann::json(s).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    }
  }
  void number(auto value)
    requires std::is_integral_v<decltype(value)>
  {
    separate();
    append(value);
  }
  void number(double value) {
    if (std::isnan(value)) return text("NaN");
    if (std::isinf(value)) return text(value > 0 ? "Infinity" : "-Infinity");
    separate();
    append(value);
  }
  void null() {
    separate();
    out_ += "null";
  }
  void flag(std::string_view name) {
    key(name);
    separate();
    out_ += "true";
  }
  template <typename T>
  void field(std::string_view name, T value) {
    key(name);
    if constexpr (std::is_arithmetic_v<T>) {
      number(value);
    } else {
      text(value);
    }
  }
  void id(std::string_view name, std::uint32_t value) {
    if (value != kNone) field(name, value);
  }
  std::string take() { return std::move(out_); }

 private:
  void separate() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  void append(auto value) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    out_.append(buffer, end);
  }
  std::string out_;
  bool first_ = true;
};

void write(Writer& w, const TensorUse& use) {
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

void write(Writer& w, std::string_view name, const std::vector<TensorUse>& uses) {
  w.key(name);
  w.open('[');
  for (const auto& use : uses) write(w, use);
  w.close(']');
}

// How much larger the output is than the largest input; nothing where that says nothing.
void write_growth(Writer& w, const Op& op) {
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

void write(Writer& w, const Trace& trace, std::size_t index) {
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

void write_storages(Writer& w, const std::vector<Storage>& storages) {
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

void write_header(Writer& w, const Trace& trace) {
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
  Writer w;
  write_header(w, trace);
  for (std::size_t i = 0; i < trace.ops.size(); ++i) write(w, trace, i);
  return w.take();
}

}  // namespace finitude::record
