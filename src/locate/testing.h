// Builds small traces for tests: tensors are whole storages or parts of them, values are stated as counts.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "record/trace.h"

namespace finitude::locate::testing {

struct Values {
  std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0;
  double min = -1, max = 1;
  std::uint64_t zero = 0;
};
inline constexpr Values kClean{}, kNanValue{.nan = 1}, kInfValue{.pos_inf = 1}, kMinusInfValue{.neg_inf = 1};

// A tensor of `shape` float32 elements that starts at byte `begin` of its storage.
struct Tensor {
  record::StorageId storage = record::kNone;
  std::vector<std::int64_t> shape = {4};
  std::int64_t begin = 0;
  std::int64_t end = 0;  // 0: dense from begin

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const auto d : shape) n *= d;
    return n;
  }
  Tensor part(std::int64_t first, std::int64_t count) const { return {storage, {count}, begin + 4 * first, 0}; }
  Tensor column(std::int64_t index) const {  // of a matrix: not dense
    return {storage, {shape[0]}, begin + 4 * index, begin + 4 * (index + (shape[0] - 1) * shape[1] + 1)};
  }
  Tensor as(std::vector<std::int64_t> new_shape) const { return {storage, std::move(new_shape), begin, end}; }
};

inline record::TensorUse use_of(const Tensor& t, const Values& v, std::string arg, bool written = false) {
  record::TensorUse use;
  use.storage = t.storage;
  use.begin = t.begin;
  use.end = t.end != 0 ? t.end : t.begin + 4 * t.numel();
  use.dense = use.end - use.begin == 4 * t.numel();
  use.dtype = sense::DType::kFloat32;
  use.shape = t.shape;
  use.health.numel = static_cast<std::uint64_t>(t.numel());
  use.health.nan = v.nan;
  use.health.pos_inf = v.pos_inf;
  use.health.neg_inf = v.neg_inf;
  use.health.zero = v.zero;
  use.health.min = v.min;
  use.health.max = v.max;
  use.health.absmax = std::max(std::abs(v.min), std::abs(v.max));
  use.health.sum_sq = static_cast<double>(use.health.finite() - v.zero) * use.health.absmax * use.health.absmax;
  if (!use.health.ok()) use.first_bad = 0;
  use.arg = std::move(arg);
  use.written = written;
  return use;
}

class TraceBuilder {
 public:
  record::Trace trace;
  record::Phase phase = record::Phase::kForward;

  Tensor storage(record::Origin origin = record::Origin::kUnknown, std::vector<std::int64_t> shape = {4}) {
    trace.storages.push_back({origin, "", record::kNone});
    return {static_cast<record::StorageId>(trace.storages.size() - 1), std::move(shape)};
  }

  // One op being described. It ends when the object is destroyed or end() is called; ops begun meanwhile are
  // inside it.
  class Call {
   public:
    Call(TraceBuilder* b, record::OpId id) : b_(b), id_(id) {}
    Call(const Call&) = delete;
    ~Call() { end(); }
    Call& in(const Tensor& t, Values v = kClean, std::string arg = "self") {
      op().inputs.push_back(use_of(t, v, std::move(arg)));
      return *this;
    }
    // An input that the op overwrites or updates.
    Call& inout(const Tensor& t, Values before, std::string arg = "self") {
      op().inputs.push_back(use_of(t, before, std::move(arg), true));
      return *this;
    }
    Call& out(const Tensor& t, Values v = kClean, std::string arg = "") {
      op().outputs.push_back(use_of(t, v, std::move(arg)));
      return *this;
    }
    Call& number(double value, std::string arg = "value") {
      op().scalars.push_back({std::move(arg), std::to_string(value), value, false});
      return *this;
    }
    Call& forward(record::OpId id) {
      op().forward = id;
      return *this;
    }
    Call& view() {
      op().is_view = true;
      return *this;
    }
    Call& alloc() {
      op().allocates = true;
      return *this;
    }
    record::Op& op() { return b_->trace.ops[id_]; }
    record::OpId end() {
      if (!open_) return id_;
      open_ = false;
      op().end_order = ++b_->ends_;
      b_->open_.pop_back();
      return id_;
    }
    record::OpId id() const { return id_; }

   private:
    TraceBuilder* b_;
    record::OpId id_;
    bool open_ = true;
  };

  Call op(std::string name) { return begin(std::move(name), false); }
  Call node(std::string name) { return begin(std::move(name), true); }
  // out = name(in), values as stated.
  record::OpId unary(std::string name, const Tensor& in, Values of_in, const Tensor& out, Values of_out) {
    return op(std::move(name)).in(in, of_in).out(out, of_out).end();
  }
  record::OpId binary(std::string name, const Tensor& a, Values of_a, const Tensor& b, Values of_b, const Tensor& out,
                      Values of_out) {
    return op(std::move(name)).in(a, of_a).in(b, of_b, "other").out(out, of_out).end();
  }

  void sink(std::string kind, const Tensor& t, Values v) {
    trace.sinks.push_back({kind, kind, use_of(t, v, ""), ends_ + 1, 0});
  }

 private:
  Call begin(std::string name, bool is_node) {
    const auto id = static_cast<record::OpId>(trace.ops.size());
    record::Op op;
    op.name = std::move(name);
    op.is_node = is_node;
    op.phase = phase;
    op.parent = open_.empty() ? record::kNone : open_.back();
    for (auto it = open_.rbegin(); it != open_.rend() && op.node == record::kNone; ++it) {
      if (trace.ops[*it].is_node) op.node = *it;
    }
    if (is_node || op.node != record::kNone) op.phase = record::Phase::kBackward;
    trace.ops.push_back(std::move(op));
    open_.push_back(id);
    return Call(this, id);
  }

  std::vector<record::OpId> open_;
  std::uint32_t ends_ = 0;
};

}  // namespace finitude::locate::testing
