// Reads the trace file. Hostile input: every number, index and length is checked before use.
#include "record/trace_jsonl.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "record/bad_rows.h"
#include "record/trace_words.h"

namespace finitude::record {
namespace {

using nlohmann::json;

constexpr json::value_t kUnsigned = json::value_t::number_unsigned, kInteger = json::value_t::number_integer;

// All methods return false once something was wrong; the first complaint stays.
class Reader {
 public:
  explicit Reader(Trace* trace) : trace_(*trace) {}
  bool header(const json& line, std::size_t text_size);
  bool op(const json& line);
  bool finish();
  const std::string& error() const { return error_; }
  bool fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }

 private:
  // A missing key leaves `out` as it is.
  template <typename T>
  bool integer(const json& from, const char* key, T* out, std::uint64_t max = std::numeric_limits<T>::max());
  bool real(const json& value, const char* key, double* out);
  bool field(const json& from, const char* key, double* out);
  bool boolean(const json& from, const char* key, bool* out);
  bool text(const json& from, const char* key, std::string* out);
  // An index below `limit`; kNone where the key is missing.
  bool id(const json& from, const char* key, std::size_t limit, std::uint32_t* out);
  template <std::size_t n>
  bool word(const json& from, const char* key, const std::array<std::string_view, n>& words, std::size_t* out);
  template <typename Each>
  bool list(const json& from, const char* key, std::size_t max, const Each& each);
  bool sizes(const json& from, const char* key, std::size_t max, std::vector<std::int64_t>* out);
  bool health(const json& from, sense::Health* out);
  bool tensor(const json& from, TensorUse* out);
  bool origins(const json& line);
  bool stack(const json& from);
  bool sink(const json& from);

  Trace& trace_;
  std::size_t num_ops_ = 0;
  std::string error_;
};

template <typename T>
bool Reader::integer(const json& from, const char* key, T* out, std::uint64_t max) {
  const auto it = from.find(key);
  if (it == from.end()) return true;
  if (it->type() == kUnsigned) {
    const auto value = it->get<std::uint64_t>();
    if (value > max) return fail(std::string(key) + " is too large");
    *out = static_cast<T>(value);
    return true;
  }
  if constexpr (std::is_signed_v<T>) {
    if (it->type() == kInteger) {
      const auto value = it->get<std::int64_t>();
      if (value < std::numeric_limits<T>::min()) return fail(std::string(key) + " is too small");
      *out = static_cast<T>(value);
      return true;
    }
  }
  return fail(std::string(key) + " is not a valid integer");
}

bool Reader::real(const json& value, const char* key, double* out) {
  if (value.is_number()) {
    *out = value.get<double>();
    return true;
  }
  if (const auto* s = value.get_ptr<const std::string*>()) {
    if (*s == "NaN")
      *out = std::numeric_limits<double>::quiet_NaN();
    else if (*s == "Infinity")
      *out = HUGE_VAL;
    else if (*s == "-Infinity")
      *out = -HUGE_VAL;
    else
      return fail(std::string(key) + " is not a number");
    return true;
  }
  return fail(std::string(key) + " is not a number");
}

bool Reader::field(const json& from, const char* key, double* out) {
  const auto it = from.find(key);
  return it == from.end() || real(*it, key, out);
}

bool Reader::boolean(const json& from, const char* key, bool* out) {
  const auto it = from.find(key);
  if (it == from.end()) return true;
  if (!it->is_boolean()) return fail(std::string(key) + " is not true or false");
  *out = it->get<bool>();
  return true;
}

bool Reader::text(const json& from, const char* key, std::string* out) {
  const auto it = from.find(key);
  if (it == from.end()) return true;
  const auto* s = it->get_ptr<const std::string*>();
  if (s == nullptr) return fail(std::string(key) + " is not a string");
  if (s->size() > kMaxTraceText) return fail(std::string(key) + " is too long");
  *out = *s;
  return true;
}

bool Reader::id(const json& from, const char* key, std::size_t limit, std::uint32_t* out) {
  *out = kNone;
  if (!integer(from, key, out)) return false;
  return *out == kNone || *out < limit || fail(std::string(key) + " points beyond its table");
}

template <std::size_t n>
bool Reader::word(const json& from, const char* key, const std::array<std::string_view, n>& words, std::size_t* out) {
  std::string s;
  if (!text(from, key, &s)) return false;
  for (std::size_t i = 0; i < n; ++i) {
    if (words[i] != s) continue;
    *out = i;
    return true;
  }
  return fail(std::string(key) + " is not a known word");
}

template <typename Each>
bool Reader::list(const json& from, const char* key, std::size_t max, const Each& each) {
  const auto it = from.find(key);
  if (it == from.end()) return true;
  if (!it->is_array()) return fail(std::string(key) + " is not a list");
  if (it->size() > max) return fail(std::string(key) + " is too long");
  for (const json& item : *it) {
    if (!each(item)) return false;
  }
  return true;
}

bool Reader::health(const json& from, sense::Health* out) {
  std::uint64_t inf = 0;
  if (!integer(from, "numel", &out->numel) || !integer(from, "nan", &out->nan) || !integer(from, "inf", &inf) ||
      !integer(from, "neg_inf", &out->neg_inf) || !integer(from, "zero", &out->zero) ||
      !integer(from, "subnormal", &out->subnormal) || !field(from, "min", &out->min) ||
      !field(from, "max", &out->max) || !field(from, "absmax", &out->absmax) || !field(from, "sum_sq", &out->sum_sq)) {
    return false;
  }
  if (out->nan > out->numel || inf > out->numel - out->nan || out->neg_inf > inf) return fail("counts do not add up");
  out->pos_inf = inf - out->neg_inf;
  if (out->zero > out->finite() || out->subnormal > out->finite() - out->zero) return fail("counts do not add up");
  return true;
}

bool Reader::tensor(const json& from, TensorUse* out) {
  if (!from.is_object()) return fail("a tensor is not an object");
  std::string dtype;
  bool strided = false;
  if (!text(from, "arg", &out->arg) || !text(from, "dtype", &dtype) ||
      !id(from, "storage", trace_.storages.size(), &out->storage) || !integer(from, "begin", &out->begin) ||
      !integer(from, "end", &out->end) || !boolean(from, "strided", &strided) ||
      !boolean(from, "written", &out->written) || !boolean(from, "requires_grad", &out->requires_grad) ||
      !integer(from, "first_bad", &out->first_bad) || !health(from, &out->health)) {
    return false;
  }
  out->dense = !strided;
  if (out->begin < 0 || out->end < out->begin || out->first_bad < -1) return fail("a span is not valid");
  bool known = false;
  for (int i = 0; i <= static_cast<int>(sense::DType::kOther); ++i) {
    if (sense::info(static_cast<sense::DType>(i)).name != dtype) continue;
    out->dtype = static_cast<sense::DType>(i);
    known = true;
  }
  if (!known) return fail("dtype is not known");
  return sizes(from, "shape", kMaxTraceDims, &out->shape) && sizes(from, "bad_rows", kMostBadRows, &out->bad_rows);
}

bool Reader::sizes(const json& from, const char* key, std::size_t max, std::vector<std::int64_t>* out) {
  return list(from, key, max, [&](const json& d) {
    if (d.type() != kUnsigned || d.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      return fail(std::string(key) + " holds something else than sizes");
    }
    out->push_back(d.get<std::int64_t>());
    return true;
  });
}

bool Reader::origins(const json& line) {
  return list(line, "origins", trace_.storages.size(), [&](const json& item) {
    std::uint32_t at = kNone;
    std::size_t origin = 0;
    if (!item.is_object() || !id(item, "storage", trace_.storages.size(), &at) || at == kNone) {
      return fail("an origin names no storage");
    }
    Storage& storage = trace_.storages[at];
    if (!word(item, "origin", kOriginWords, &origin) || !text(item, "name", &storage.name) ||
        !id(item, "stack", trace_.stacks.size(), &storage.stack)) {
      return false;
    }
    storage.origin = static_cast<Origin>(origin);
    return true;
  });
}

bool Reader::stack(const json& from) {
  if (!from.is_object()) return fail("a stack is not an object");
  Stack& stack = trace_.stacks.emplace_back();
  return text(from, "module", &stack.module) && text(from, "statement_context", &stack.statement_context) &&
         list(from, "frames", kMaxTraceFrames, [&](const json& item) {
           if (!item.is_object()) return fail("a frame is not an object");
           Frame& frame = stack.frames.emplace_back();
           return text(item, "file", &frame.file) && integer(item, "line", &frame.line) &&
                  text(item, "function", &frame.function);
         });
}

bool Reader::sink(const json& from) {
  if (!from.is_object()) return fail("a sink is not an object");
  Sink& sink = trace_.sinks.emplace_back();
  sink.at_end_order = kNone;
  const auto value = from.find("value");
  if (value == from.end()) return fail("a sink has no value");
  return text(from, "kind", &sink.kind) && text(from, "name", &sink.name) &&
         integer(from, "at_end", &sink.at_end_order) && integer(from, "micro_batch", &sink.micro_batch) &&
         tensor(*value, &sink.value);
}

bool Reader::header(const json& line, std::size_t text_size) {
  int format = 0;
  std::size_t storages = 0;
  if (!integer(line, "finitude_trace", &format)) return false;
  if (format != kTraceFormat) return fail("not a finitude trace of this format");
  if (!integer(line, "ops", &num_ops_, kMaxTraceOps) || !integer(line, "storages", &storages, kMaxTraceStorages) ||
      !boolean(line, "truncated", &trace_.truncated)) {
    return false;
  }
  // A storage that no op names is rare; a short file that asks for millions is an attack on memory.
  if (storages > 4096 + text_size) return fail("storages is too large for this file");
  trace_.storages.resize(storages);
  return list(line, "stacks", kMaxTraceStacks, [&](const json& item) { return stack(item); }) && origins(line) &&
         list(line, "sinks", kMaxTraceSinks, [&](const json& item) { return sink(item); });
}

bool Reader::op(const json& line) {
  const std::size_t index = trace_.ops.size();
  if (index >= num_ops_) return fail("more ops than announced");
  std::size_t own = index, phase = 0;
  Op op;
  if (!integer(line, "id", &own) || own != index) return fail("ops are out of order");
  if (!text(line, "op", &op.name) || !word(line, "phase", kPhaseWords, &phase) ||
      !id(line, "stack", trace_.stacks.size(), &op.stack) || !id(line, "parent", index, &op.parent) ||
      !id(line, "node", num_ops_, &op.node) || !id(line, "forward", num_ops_, &op.forward) ||
      !integer(line, "end", &op.end_order) || !integer(line, "micro_batch", &op.micro_batch)) {
    return false;
  }
  op.phase = static_cast<Phase>(phase);
  for (const auto& [word, flag] : kFlagWords) {
    if (!boolean(line, word.data(), &(op.*flag))) return false;
  }
  for (const auto& [key, uses] : {std::pair("inputs", &op.inputs), std::pair("outputs", &op.outputs)}) {
    if (!list(line, key, kMaxTraceTensors,
              [&, to = uses](const json& item) { return tensor(item, &to->emplace_back()); })) {
      return false;
    }
  }
  const bool ok = list(line, "scalars", kMaxTraceScalars, [&](const json& item) {
    if (!item.is_object()) return fail("a scalar is not an object");
    ScalarUse& scalar = op.scalars.emplace_back();
    if (!text(item, "arg", &scalar.arg) || !text(item, "text", &scalar.text) ||
        !boolean(item, "tensor_like", &scalar.tensor_like)) {
      return false;
    }
    const auto number = item.find("number");
    if (number == item.end()) return true;
    double value = 0;
    if (!real(*number, "number", &value)) return false;
    scalar.number = value;
    return true;
  });
  if (ok) trace_.ops.push_back(std::move(op));
  return ok;
}

bool Reader::finish() { return trace_.ops.size() == num_ops_ || fail("ops are missing at the end"); }

bool read(std::string_view text, Trace* trace, std::string* error) {
  Reader reader(trace);
  std::size_t line_number = 0;
  const auto complain = [&](const std::string& what) {
    *error = "line " + std::to_string(line_number) + ": " + what;
    return false;
  };
  if (text.size() > kMaxTraceBytes) return complain("the file is too large");
  const std::size_t size = text.size();
  while (!text.empty() || line_number == 0) {
    const std::size_t length = text.find('\n');
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
    ++line_number;
    if (line.size() > kMaxTraceLine) return complain("the line is too long");
    const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object()) return complain("not a JSON object");
    if (!(line_number == 1 ? reader.header(value, size) : reader.op(value))) return complain(reader.error());
  }
  return reader.finish() || complain(reader.error());
}

}  // namespace

bool from_jsonl(std::string_view text, Trace* trace, std::string* error) {
  Trace out;
  *trace = Trace();
  try {
    if (!read(text, &out, error)) return false;
  } catch (const std::exception& e) {  // out of memory, above all
    *error = e.what();
    return false;
  }
  *trace = std::move(out);
  return true;
}

}  // namespace finitude::record
