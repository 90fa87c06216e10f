#include "capture/step_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "capture/wire.h"
#include "record/bad_rows.h"
#include "record/reported_range.h"

namespace finitude::capture {
namespace {

using record::kNone;
using record::Op;
using record::TensorUse;
using record::Trace;

enum TraceBit : std::uint8_t { kTruncated = 1, kRedacted = 2 };
enum TensorBit : std::uint8_t { kDense = 1, kCounted = 2, kBad = 4 };
enum UseBit : std::uint8_t { kWritten = 1, kRequiresGrad = 2 };
enum ScalarBit : std::uint8_t { kTensorLike = 1, kNumber = 2 };
constexpr bool Op::*kOpBits[] = {&Op::is_node, &Op::is_view, &Op::allocates, &Op::random, &Op::failed, &Op::captured};
constexpr std::size_t kMostDims = 64;
constexpr std::uint64_t kMostNumber = std::numeric_limits<std::int64_t>::max();

// What has been taken of the two bounds.
class Budget {
 public:
  bool take(std::uint64_t bytes, std::uint64_t parts) {
    if (bytes > bytes_ || parts > parts_) return false;
    bytes_ -= bytes;
    parts_ -= parts;
    return true;
  }

 private:
  std::uint64_t bytes_ = kMostStatisticsMemory, parts_ = kMostStatisticsParts;
};

std::uint64_t memory_of(const TensorUse& use) {
  return sizeof use + 8 * (use.shape.size() + use.bad_rows.size()) + use.arg.size();
}

// Of everything that a use may add to the tables: its tensor, that one's storage.
constexpr std::uint64_t kBesideUse = sizeof(TensorUse) + sizeof(record::Storage) + 256;
constexpr std::uint64_t kBesideOp = sizeof(Op) + sizeof(record::Stack) + sizeof(record::Frame) + 512;

// Each once, by number in order of their first use.
template <typename Key>
class Table {
 public:
  std::uint32_t of(const Key& key) {
    const auto [at, is_new] = numbers_.try_emplace(key, static_cast<std::uint32_t>(numbers_.size()));
    if (is_new) order_.push_back(&at->first);
    return at->second;
  }
  const std::vector<const Key*>& all() const { return order_; }

 private:
  std::unordered_map<Key, std::uint32_t> numbers_;
  std::vector<const Key*> order_;
};

class Writer {
 public:
  Writer(const Trace& trace, bool redact) : trace_(trace), redact_(redact) {
    texts_.of("");
    (void)budget_.take(4096, 64);  // that, and the names of dtypes
  }

  std::string body() {
    std::string ops, sinks;
    WireWriter to_ops(&ops), to_sinks(&sinks);
    std::uint64_t num_sinks = 0;
    for (const record::Sink& sink : trace_.sinks) {
      if (!has_room(sink.value, 1024 + sink.kind.size() + sink.name.size())) break;
      put(to_sinks, sink);
      ++num_sinks;
    }
    num_ops_ = ops_that_fit();
    for (std::size_t i = 0; i < num_ops_; ++i) put(to_ops, trace_.ops[i]);
    // The tables are complete now; a text that they name comes up no later than here.
    std::string stacks, storages, tensors;
    WireWriter to_stacks(&stacks), to_storages(&storages);
    for (const std::uint32_t* id : stacks_.all()) put_stack(to_stacks, trace_.stacks[*id]);
    for (const std::uint32_t* id : storages_.all()) {
      to_storages.u8(static_cast<std::uint8_t>(trace_.storages[*id].origin));
      to_storages.var(text(trace_.storages[*id].name));
    }
    for (const std::string* tensor : tensors_.all()) tensors += *tensor;
    std::string body;
    WireWriter out(&body);
    out.u8(static_cast<std::uint8_t>((trace_.truncated || num_ops_ < trace_.ops.size() ? kTruncated : 0) |
                                     (redact_ ? kRedacted : 0)));
    out.var(texts_.all().size());
    for (const std::string* one : texts_.all()) out.text(*one);
    const auto list = [&](std::uint64_t count, const std::string& bytes) {
      out.var(count);
      body += bytes;
    };
    list(stacks_.all().size(), stacks);
    list(storages_.all().size(), storages);
    list(tensors_.all().size(), tensors);
    list(num_ops_, ops);
    list(num_sinks, sinks);
    return body;
  }

 private:
  bool has_room(const TensorUse& use, std::uint64_t beside) {
    if (use.storage < trace_.storages.size()) beside += 2 * trace_.storages[use.storage].name.size();
    return budget_.take(2 * memory_of(use) + kBesideUse + beside, 10 + use.shape.size() + use.bad_rows.size());
  }
  std::uint64_t memory_of_stack(std::uint32_t id) const {
    if (id >= trace_.stacks.size()) return 0;
    const record::Stack& stack = trace_.stacks[id];
    return stack.module.size() +
           (stack.frames.empty() ? 0 : stack.frames[0].file.size() + stack.frames[0].function.size());
  }
  std::size_t ops_that_fit() {
    for (std::size_t i = 0; i < trace_.ops.size(); ++i) {
      const Op& op = trace_.ops[i];
      if (!budget_.take(kBesideOp + 2 * (op.name.size() + memory_of_stack(op.stack)), 8)) return i;
      for (const auto* uses : {&op.inputs, &op.outputs}) {
        for (const TensorUse& use : *uses) {
          if (!has_room(use, 0)) return i;
        }
      }
      for (const record::ScalarUse& scalar : op.scalars) {
        if (!budget_.take(2 * (sizeof scalar + scalar.arg.size() + scalar.text.size()), 4)) return i;
      }
    }
    return trace_.ops.size();
  }

  std::uint32_t text(std::string_view value) { return texts_.of(std::string(value)); }
  static void id(WireWriter& out, std::uint32_t value) { out.var(value == kNone ? 0 : std::uint64_t{value} + 1); }

  void put_stack(WireWriter& out, const record::Stack& stack) {
    out.var(text(stack.module));
    const bool has_place = !redact_ && !stack.frames.empty();
    out.var(has_place ? text(stack.frames[0].file) : 0);
    out.var(has_place ? static_cast<std::uint64_t>(std::max(stack.frames[0].line, 0)) : 0);
    out.var(has_place ? text(stack.frames[0].function) : 0);
  }

  std::uint32_t tensor(const TensorUse& use) {
    std::string bytes;
    WireWriter out(&bytes);
    sense::Health h = use.health;
    if (redact_ && record::range_gives_values_away(h)) record::leave_range_out(h);
    const bool bad = use.first_bad >= 0 || !use.bad_rows.empty();
    out.var(text(sense::info(use.dtype).name));
    out.u8(static_cast<std::uint8_t>((use.dense ? kDense : 0) | (h.numel != 0 ? kCounted : 0) | (bad ? kBad : 0)));
    id(out, use.storage < trace_.storages.size() ? storages_.of(use.storage) : kNone);
    const std::int64_t begin = std::max<std::int64_t>(use.begin, 0);
    out.var(static_cast<std::uint64_t>(begin));
    out.var(static_cast<std::uint64_t>(std::max(use.end, begin) - begin));
    numbers(out, use.shape);
    if (h.numel != 0) {
      for (const std::uint64_t count : {h.numel, h.nan, h.pos_inf, h.neg_inf, h.zero, h.subnormal}) out.var(count);
      for (const double real : {h.min, h.max, h.sum_sq}) out.f64(real);
    }
    if (bad) {
      out.var(static_cast<std::uint64_t>(use.first_bad + 1));
      numbers(out, use.bad_rows);
    }
    return tensors_.of(bytes);
  }
  static void numbers(WireWriter& out, const std::vector<std::int64_t>& values) {
    out.var(values.size());
    for (const std::int64_t value : values) out.var(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0)));
  }
  void put(WireWriter& out, const TensorUse& use) {
    out.var(tensor(use));
    out.var(text(use.arg));
    out.u8(static_cast<std::uint8_t>((use.written ? kWritten : 0) | (use.requires_grad ? kRequiresGrad : 0)));
  }
  void put(WireWriter& out, const std::vector<TensorUse>& uses) {
    out.var(uses.size());
    for (const TensorUse& use : uses) put(out, use);
  }
  void put(WireWriter& out, const Op& op) {
    const auto reported = [&](std::uint32_t other) { return other < num_ops_ ? other : kNone; };
    std::uint8_t bits = 0;
    for (std::size_t i = 0; i < std::size(kOpBits); ++i)
      bits |= static_cast<std::uint8_t>((op.*kOpBits[i] ? 1 : 0) << i);
    out.var(text(op.name));
    out.u8(static_cast<std::uint8_t>(op.phase));
    out.u8(bits);
    id(out, reported(op.parent));
    id(out, reported(op.node));
    id(out, reported(op.forward));
    id(out, op.stack < trace_.stacks.size() ? stacks_.of(op.stack) : kNone);
    out.var(op.end_order);
    out.var(op.micro_batch);
    put(out, op.inputs);
    put(out, op.outputs);
    out.var(redact_ ? 0 : op.scalars.size());
    if (redact_) return;
    for (const record::ScalarUse& scalar : op.scalars) {
      out.var(text(scalar.arg));
      out.var(text(scalar.text));
      out.u8(static_cast<std::uint8_t>((scalar.tensor_like ? kTensorLike : 0) | (scalar.number ? kNumber : 0)));
      if (scalar.number) out.f64(*scalar.number);
    }
  }
  void put(WireWriter& out, const record::Sink& sink) {
    out.var(text(sink.kind));
    out.var(text(sink.name));
    put(out, sink.value);
    id(out, sink.at_end_order);
    out.var(sink.micro_batch);
  }

  const Trace& trace_;
  const bool redact_;
  std::size_t num_ops_ = 0;
  Budget budget_;
  Table<std::string> texts_, tensors_;
  Table<std::uint32_t> stacks_, storages_;
};

class Reader {
 public:
  Reader(std::string_view body, Trace* trace) : in_(body), trace_(*trace) {}

  bool read(bool* redacted) {
    const std::uint8_t bits = in_.u8();
    trace_.truncated = (bits & kTruncated) != 0;
    *redacted = (bits & kRedacted) != 0;
    each(sizeof(std::string), [&] {
      const std::string_view one = in_.text();
      if (take(one.size())) texts_.emplace_back(one);
    });
    each(sizeof(record::Stack) + sizeof(record::Frame), [&] { stack(); });
    each(sizeof(record::Storage), [&] {
      record::Storage& storage = trace_.storages.emplace_back();
      storage.origin =
          static_cast<record::Origin>(below(static_cast<std::uint64_t>(record::Origin::kConstant) + 1, in_.u8()));
      storage.name = text();
    });
    each(sizeof(TensorUse), [&] { tensors_.push_back(tensor()); });
    each(
        sizeof(Op), [&] { op(); }, &num_ops_);
    each(sizeof(record::Sink), [&] {
      record::Sink& sink = trace_.sinks.emplace_back();
      sink.kind = text();
      sink.name = text();
      sink.value = use();
      sink.at_end_order = id(kNone);
      sink.micro_batch = small();
    });
    return in_.ok() && in_.at_end();
  }

 private:
  // A list: what each of it takes in memory is taken from the budget before it is read.
  template <typename Read>
  void each(std::uint64_t memory, const Read& one, std::size_t* reported = nullptr) {
    std::size_t count = in_.count();
    if (reported != nullptr) *reported = count;
    for (; count > 0 && take(memory, 1) && in_.ok(); --count) one();
  }
  bool take(std::uint64_t bytes, std::uint64_t parts = 0) {
    if (!budget_.take(bytes, parts)) in_.fail();
    return in_.ok();
  }
  std::uint64_t below(std::uint64_t limit, std::uint64_t value) {
    if (value < limit) return value;
    in_.fail();
    return 0;
  }
  std::string text() {
    const std::uint64_t at = below(texts_.size(), in_.var());
    if (!in_.ok() || !take(texts_[at].size())) return {};
    return texts_[at];
  }
  std::uint32_t small() { return static_cast<std::uint32_t>(in_.var(kNone)); }
  std::int64_t number() { return static_cast<std::int64_t>(in_.var(kMostNumber)); }
  // 0: none; else the number of one below the limit.
  std::uint32_t id(std::uint64_t limit) {
    const std::uint64_t value = in_.var(limit);
    return value == 0 || !in_.ok() ? kNone : static_cast<std::uint32_t>(value - 1);
  }

  void stack() {
    record::Stack& stack = trace_.stacks.emplace_back();
    stack.module = text();
    record::Frame frame;
    frame.file = text();
    frame.line = static_cast<int>(in_.var(std::numeric_limits<int>::max()));
    frame.function = text();
    if (!frame.file.empty()) stack.frames.push_back(std::move(frame));
  }
  sense::DType dtype() {
    const std::string name = text();
    for (int i = 0; i <= static_cast<int>(sense::DType::kOther); ++i) {
      if (sense::info(static_cast<sense::DType>(i)).name == name) return static_cast<sense::DType>(i);
    }
    in_.fail();
    return sense::DType::kOther;
  }
  void numbers(std::size_t most, std::vector<std::int64_t>* out) {
    const std::size_t count = in_.count();
    if (count > most) in_.fail();
    for (std::size_t i = 0; i < count && take(8, 1); ++i) out->push_back(number());
  }
  TensorUse tensor() {
    TensorUse t;
    t.dtype = dtype();
    const std::uint8_t bits = in_.u8();
    t.dense = (bits & kDense) != 0;
    t.storage = id(trace_.storages.size());
    t.begin = number();
    t.end = static_cast<std::int64_t>(in_.var(kMostNumber - static_cast<std::uint64_t>(t.begin))) + t.begin;
    numbers(kMostDims, &t.shape);
    if ((bits & kCounted) != 0) counts(t.health);
    if ((bits & kBad) != 0) {
      t.first_bad = number() - 1;
      numbers(record::kMostBadRows, &t.bad_rows);
    }
    return t;
  }
  void counts(sense::Health& h) {
    for (std::uint64_t* count : {&h.numel, &h.nan, &h.pos_inf, &h.neg_inf, &h.zero, &h.subnormal})
      *count = in_.var(kMostNumber);
    for (double* real : {&h.min, &h.max, &h.sum_sq}) *real = in_.f64();
    h.absmax = std::max(std::abs(h.min), std::abs(h.max));
    // None is above 2^63, so no sum of two wraps around.
    const bool add_up = h.nan <= h.numel && h.pos_inf <= h.numel - h.nan && h.neg_inf <= h.numel - h.nan - h.pos_inf &&
                        h.zero <= h.finite() && h.subnormal <= h.finite() - h.zero;
    if (!add_up || h.numel == 0 || !std::isfinite(h.min) || !std::isfinite(h.max) || h.min > h.max || !(h.sum_sq >= 0))
      in_.fail();
  }
  TensorUse use() {
    const std::uint64_t at = below(tensors_.size(), in_.var());
    const std::uint64_t arg = below(texts_.size(), in_.var());
    const std::uint8_t bits = in_.u8();
    if (!in_.ok() || !take(memory_of(tensors_[at]) + texts_[arg].size())) return {};
    TensorUse use = tensors_[at];
    use.arg = texts_[arg];
    use.written = (bits & kWritten) != 0;
    use.requires_grad = (bits & kRequiresGrad) != 0;
    return use;
  }
  void op() {
    const std::size_t index = trace_.ops.size();
    Op& op = trace_.ops.emplace_back();
    op.name = text();
    op.phase = static_cast<record::Phase>(below(static_cast<std::uint64_t>(record::Phase::kData) + 1, in_.u8()));
    const std::uint8_t bits = in_.u8();
    for (std::size_t i = 0; i < std::size(kOpBits); ++i) op.*kOpBits[i] = (bits >> i & 1) != 0;
    op.parent = id(index);
    op.node = id(num_ops_);  // not always before it: see locate/script_nodes.h
    op.forward = id(num_ops_);
    op.stack = id(trace_.stacks.size());
    op.end_order = small();
    op.micro_batch = small();
    each(0, [&] { op.inputs.push_back(use()); });
    each(0, [&] { op.outputs.push_back(use()); });
    each(sizeof(record::ScalarUse), [&] {
      record::ScalarUse& scalar = op.scalars.emplace_back();
      scalar.arg = text();
      scalar.text = text();
      const std::uint8_t what = in_.u8();
      scalar.tensor_like = (what & kTensorLike) != 0;
      if ((what & kNumber) != 0) scalar.number = in_.f64();
    });
  }

  WireReader in_;
  Trace& trace_;
  Budget budget_;
  std::size_t num_ops_ = 0;
  std::vector<std::string> texts_;
  std::vector<TensorUse> tensors_;
};

}  // namespace

std::string write_statistics(const Trace& trace, bool redact) {
  const std::string body = Writer(trace, redact).body();
  std::string file;
  WireWriter out(&file);
  out.raw(kStatisticsMagic.data(), kStatisticsMagic.size());
  out.u64(kStatisticsVersion | std::uint64_t{kStatisticsHeaderBytes} << 32);
  out.u64(body.size());
  out.u64(base::checksum(body.data(), body.size()));
  out.u64(base::checksum(file.data(), file.size()));
  return file + body;
}

Status read_statistics(std::string_view bytes, Trace* trace, bool* redacted) {
  *trace = {};
  WireReader in(bytes);
  if (in.raw(kStatisticsMagic.size()) != kStatisticsMagic)
    return Status(StatusCode::kCorrupt, "are no statistics of a step");
  const std::uint64_t version = in.u64(), size = in.u64(), sum = in.u64();
  const std::size_t reported = bytes.size() - in.left();
  if (in.u64() != base::checksum(bytes.data(), reported) || !in.ok())
    return Status(StatusCode::kCorrupt, "are damaged: the checksum of their header differs");
  if (version != (kStatisticsVersion | std::uint64_t{kStatisticsHeaderBytes} << 32))
    return Status(StatusCode::kUnsupported, "are of version " + std::to_string(version & 0xffffffff) +
                                                "; this program reads " + std::to_string(kStatisticsVersion));
  const std::string_view body = in.raw(size);
  if (!in.ok() || !in.at_end() || sum != base::checksum(body.data(), body.size()))
    return Status(StatusCode::kCorrupt, "are damaged: their checksum differs");
  bool is_redacted = false;
  Trace read;
  if (!Reader(body, &read).read(&is_redacted))
    return Status(StatusCode::kCorrupt, "are damaged: they say what cannot be");
  *trace = std::move(read);
  if (redacted != nullptr) *redacted = is_redacted;
  return {};
}

}  // namespace finitude::capture
