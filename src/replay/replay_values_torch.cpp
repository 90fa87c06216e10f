#include "replay/replay_values_torch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/seen_torch.h"
#include "replay/tape_observer_torch.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using record::kNone;
using record::OpId;

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

std::optional<c10::ScalarType> scalar_type(sense::DType dtype) {
  switch (dtype) {
    case sense::DType::kFloat64:
      return c10::ScalarType::Double;
    case sense::DType::kFloat32:
      return c10::ScalarType::Float;
    case sense::DType::kFloat16:
      return c10::ScalarType::Half;
    case sense::DType::kBFloat16:
      return c10::ScalarType::BFloat16;
    case sense::DType::kComplex128:
      return c10::ScalarType::ComplexDouble;
    case sense::DType::kComplex64:
      return c10::ScalarType::ComplexFloat;
    case sense::DType::kComplex32:
      return c10::ScalarType::ComplexHalf;
    case sense::DType::kFloat8E4M3FN:
      return c10::ScalarType::Float8_e4m3fn;
    case sense::DType::kFloat8E4M3FNUZ:
      return c10::ScalarType::Float8_e4m3fnuz;
    case sense::DType::kFloat8E5M2:
      return c10::ScalarType::Float8_e5m2;
    case sense::DType::kFloat8E5M2FNUZ:
      return c10::ScalarType::Float8_e5m2fnuz;
    default:
      return std::nullopt;
  }
}

void take_over(record::TensorUse& to, record::TensorUse& from) {
  if (to.dtype != from.dtype || to.shape != from.shape) return;
  to.health = from.health;
  to.first_bad = from.first_bad;
  to.bad_rows = std::move(from.bad_rows);
}

void take_over(std::vector<record::TensorUse>& to, std::vector<record::TensorUse>& from) {
  if (to.size() != from.size()) return;
  for (std::size_t i = 0; i < to.size(); ++i) take_over(to[i], from[i]);
}

// Looks on at the replay. Operators on the tape, and what their kernels call, are traced again; what encloses them
// (compound operators, nodes, Functions) and views are looked at in the memory of the replay when their time has come.
class SeeAgain : public PlayObserver {
 public:
  SeeAgain(const capture::Tape& tape, observe::Tracer& tracer, record::Trace& trace)
      : tape_(tape),
        tracer_(tracer),
        trace_(trace),
        op_of_(tape.entries.size(), kNone),
        began_(tape.entries.size(), kNone),
        ended_(tape.entries.size(), kNone),
        before_(tape.entries.size()),
        after_(tape.entries.size()),
        storage_of_(trace.storages.size(), capture::kNoStorage),
        memory_(tape.storages.size()) {
    for (std::size_t i = 0; i < tape.storages.size(); ++i) {
      if (tape.storages[i].traced < storage_of_.size())
        storage_of_[tape.storages[i].traced] = static_cast<capture::StorageId>(i);
    }
    find_ops();
    find_moments();
  }

  bool is_traced() const override { return true; }
  void given(capture::StorageId id, c10::Storage& storage) override { learn(id, storage.unsafeGetStorageImpl()); }
  void filled(std::size_t index, c10::Storage& storage) override {
    const Entry& entry = tape_.entries[index];
    learn(entry.number, storage.unsafeGetStorageImpl());
    if (entry.traced >= trace_.ops.size()) return;
    // Nothing wrote it since it was handed out: that is what the call gave. In the replay it gave something else.
    auto uses = trace_.ops[entry.traced].outputs;
    for (record::TensorUse& use : uses) look(use);
    unwritten_[entry.traced] = std::move(uses);
  }
  void before(const PlayedCall& call) override {
    const Entry& entry = tape_.entries[call.index];
    for (std::size_t i = 0; i < entry.args.size(); ++i) learn(entry.args[i], call.arguments[i]);
    for (const OpId op : before_[call.index]) look_at_inputs(trace_.ops[op]);
    began_[call.index] = static_cast<OpId>(tracer_.num_ops());
  }
  bool after(const PlayedCall& call) override {
    ended_[call.index] = static_cast<OpId>(tracer_.num_ops());
    const Entry& entry = tape_.entries[call.index];
    for (std::size_t i = 0; i < entry.results.size(); ++i) learn(entry.results[i], call.results[i]);
    for (const OpId op : after_[call.index]) {
      for (record::TensorUse& use : trace_.ops[op].outputs) look(use);
    }
    return true;
  }

  // What the tracer saw of the replay goes into the trace of the step.
  void merge(record::Trace seen) {
    std::unordered_map<OpId, OpId> moved;
    for (std::size_t i = 0; i < op_of_.size(); ++i) {
      if (op_of_[i] == kNone || began_[i] >= ended_[i] || ended_[i] > seen.ops.size()) continue;
      const std::vector<OpId>& ours = inside_[op_of_[i]];
      std::size_t next = 0;
      for (OpId theirs = began_[i]; theirs < ended_[i]; ++theirs) {
        // Above the kernels of a backend an operator may have called more than there is to see in the replay.
        const auto same = [&](OpId op) { return trace_.ops[op].name == seen.ops[theirs].name; };
        const auto found = std::find_if(ours.begin() + static_cast<std::ptrdiff_t>(next), ours.end(), same);
        if (found == ours.end()) continue;
        next = static_cast<std::size_t>(found - ours.begin()) + 1;
        record::Op& to = trace_.ops[*found];
        record::Op& from = seen.ops[theirs];
        take_over(to.inputs, from.inputs);
        take_over(to.outputs, from.outputs);
        // Numbers that a kernel read off its tensors are others where the tape is played on other values.
        if (to.scalars.size() == from.scalars.size()) to.scalars = std::move(from.scalars);
        to.captured = from.captured;
        if (from.captured) moved[theirs] = *found;
      }
    }
    for (auto& [op, uses] : unwritten_) take_over(trace_.ops[op].outputs, uses);
    tracer_.move_captured(moved);
  }

 private:
  // Which op of the trace each call on the tape is, and what it called.
  void find_ops() {
    std::vector<OpId> root(trace_.ops.size(), kNone);  // the op on the tape that an op is, or was called by
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      const Entry& entry = tape_.entries[i];
      if (entry.kind != Entry::kCall || entry.traced >= trace_.ops.size()) continue;
      if (trace_.ops[entry.traced].name != tape_.operators[entry.number].name || root[entry.traced] != kNone) continue;
      op_of_[i] = entry.traced;
      root[entry.traced] = entry.traced;
    }
    for (OpId op = 0; op < trace_.ops.size(); ++op) {  // parents come first
      const OpId parent = trace_.ops[op].parent;
      if (root[op] == kNone && parent < op && !trace_.ops[op].is_node) root[op] = root[parent];
      if (root[op] != kNone) inside_[root[op]].push_back(op);
    }
    for (OpId op = 0; op < trace_.ops.size(); ++op) {
      if (root[op] == kNone) around_.push_back(op);
    }
  }

  // The calls right before and after which the others began and ended.
  void find_moments() {
    std::vector<std::pair<std::uint32_t, std::size_t>> starts, ends;
    for (std::size_t i = 0; i < op_of_.size(); ++i) {
      if (op_of_[i] == kNone) continue;
      starts.emplace_back(op_of_[i], i);
      ends.emplace_back(trace_.ops[op_of_[i]].end_order, i);
    }
    std::sort(starts.begin(), starts.end());
    std::sort(ends.begin(), ends.end());
    const auto beyond = [](const auto& moments, std::uint32_t at) {
      return std::upper_bound(moments.begin(), moments.end(), std::pair{at, static_cast<std::size_t>(-1)});
    };
    for (const OpId op : around_) {
      if (const auto next = beyond(starts, op); next != starts.end()) before_[next->second].push_back(op);
      if (const auto last = beyond(ends, trace_.ops[op].end_order); last != ends.begin())
        after_[(last - 1)->second].push_back(op);
    }
  }

  void learn(capture::StorageId id, c10::StorageImpl* storage) {
    if (id < memory_.size() && storage != nullptr)
      memory_[id].emplace(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  }
  void learn(const capture::Value& value, const c10::IValue& played) {
    using capture::Value;
    if (value.kind == Value::kList) {
      if (!played.isList() || played.toListRef().size() != value.items.size()) return;
      for (std::size_t i = 0; i < value.items.size(); ++i) learn(value.items[i], played.toListRef()[i]);
    } else if (value.kind == Value::kTensor || value.kind == Value::kSparse) {
      if (!played.isTensor() || !played.toTensor().defined()) return;
      const at::Tensor& t = played.toTensor();
      if (t.layout() == c10::kStrided && value.kind == Value::kTensor) {
        learn(value.tensors[0].storage, t.storage().unsafeGetStorageImpl());
      } else if (t.layout() == c10::kSparse && value.kind == Value::kSparse) {
        const auto& sparse = static_cast<const at::SparseTensorImpl&>(*t.unsafeGetTensorImpl());
        learn(value.tensors[0].storage, sparse.indices().storage().unsafeGetStorageImpl());
        learn(value.tensors[1].storage, sparse.values().storage().unsafeGetStorageImpl());
      }
    }
  }

  void look_at_inputs(record::Op& op) {
    if (op.is_view) return;
    for (record::TensorUse& use : op.inputs) look(use);
  }

  // As it is in the replay now; nothing is reported where that memory is gone, or is yet to be made.
  void look(record::TensorUse& use) {
    const auto dtype = scalar_type(use.dtype);
    if (!dtype || use.begin == use.end || use.storage >= storage_of_.size() || use.health.numel != 0) return;
    const capture::StorageId id = storage_of_[use.storage];
    if (id == capture::kNoStorage || !memory_[id]) return;
    const auto held = memory_[id]->lock();
    const std::int64_t begin = use.begin - static_cast<std::int64_t>(tape_.storages[id].traced_begin);
    const std::int64_t end = begin + use.end - use.begin;
    const auto item = static_cast<std::int64_t>(c10::elementSize(*dtype));
    if (!held || begin < 0 || begin % item != 0 || end > static_cast<std::int64_t>(held->nbytes())) return;
    std::vector<std::int64_t> strides = use.strides;
    if (strides.empty()) {
      strides.resize(use.shape.size());
      std::int64_t step = 1;
      for (std::size_t d = use.shape.size(); d-- > 0; step *= std::max<std::int64_t>(use.shape[d], 1))
        strides[d] = step;
      if (step * item != end - begin) return;
    }
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(held), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(*dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(use.shape, strides);
    t.unsafeGetTensorImpl()->set_storage_offset(begin / item);
    record::SeenTensor seen = observe::Eye(known_, 0).see(*t.unsafeGetTensorImpl(), observe::Look::kFresh);
    take_over(use, seen.use);
  }

  const capture::Tape& tape_;
  observe::Tracer& tracer_;
  record::Trace& trace_;
  std::vector<OpId> op_of_, began_, ended_;        // by entry: of the trace; of what the tracer sees of the replay
  std::vector<std::vector<OpId>> before_, after_;  // by entry: ops that are not on the tape
  std::unordered_map<OpId, std::vector<OpId>> inside_;
  std::vector<OpId> around_;
  std::vector<capture::StorageId> storage_of_;      // by storage of the trace
  std::vector<std::optional<WeakStorage>> memory_;  // by storage of the tape
  std::unordered_map<OpId, std::vector<record::TensorUse>> unwritten_;
  observe::KnownHealth known_;
};

}  // namespace

void report_lines(const record::Trace& trace, capture::Tape* tape) {
  std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < tape->places.size(); ++i)
    numbers.try_emplace({tape->places[i].file, tape->places[i].line}, i);
  for (capture::Entry& entry : tape->entries) {
    if (entry.kind != Entry::kCall || entry.place != capture::kNoPlace || entry.traced >= trace.ops.size()) continue;
    const record::Op* op = &trace.ops[entry.traced];
    entry.of_backward = op->node < trace.ops.size() && op->stack == kNone;
    if (entry.of_backward) {
      const OpId forward = trace.ops[op->node].forward;
      op = forward < trace.ops.size() ? &trace.ops[forward] : op;
    }
    if (op->stack >= trace.stacks.size() || trace.stacks[op->stack].frames.empty()) continue;
    const record::Frame& frame = trace.stacks[op->stack].frames.front();
    if (frame.line <= 0) continue;
    const auto line = static_cast<std::uint32_t>(frame.line);
    const auto [number, is_new] =
        numbers.try_emplace({frame.file, line}, static_cast<std::uint32_t>(tape->places.size()));
    if (is_new) tape->places.push_back({frame.file, line, ""});
    entry.place = number->second;
  }
}

Played see_again(const capture::Tape& tape, observe::Tracer& tracer, record::Trace* trace) {
  struct Traced {
    explicit Traced(observe::Tracer& tracer) : tracer(tracer) {
      tracer.clear();
      tracer.start(nullptr);
    }
    ~Traced() { tracer.stop(); }
    observe::Tracer& tracer;
  };
  SeeAgain observer(tape, tracer, *trace);
  Played played;
  {
    const Traced traced(tracer);  // not the program's own operators from then on, whatever comes of the replay
    played = play(tape, {}, &observer);
  }
  record::Trace seen = tracer.take_trace();
  if (played.missing.empty() && played.why_not.empty()) observer.merge(std::move(seen));
  trace->truncated |= seen.truncated;
  return played;
}

}  // namespace finitude::replay
