#include "record/event_sink.h"

#include <algorithm>
#include <utility>

#include "record/trace_jsonl.h"

namespace finitude::record {
namespace {

// What the elements of a container cost beside themselves: nodes, buckets, allocation headers.
constexpr std::size_t kNodeBytes = 64;

std::size_t bytes_of(const TensorUse& use) noexcept {
  return sizeof use + use.arg.capacity() +
         (use.shape.capacity() + use.strides.capacity() + use.bad_rows.capacity()) * sizeof(std::int64_t);
}

std::size_t bytes_of(const std::vector<ScalarUse>& scalars) noexcept {
  std::size_t bytes = 0;
  for (const ScalarUse& s : scalars) bytes += sizeof s + s.arg.capacity() + s.text.capacity();
  return bytes;
}

std::size_t bytes_of(const std::vector<TensorUse>& uses) noexcept {
  std::size_t bytes = 0;
  for (const TensorUse& use : uses) bytes += bytes_of(use);
  return bytes;
}

bool same_lines(const Stack& a, const Stack& b) {
  return std::ranges::equal(a.frames, b.frames,
                            [](const Frame& x, const Frame& y) { return x.line == y.line && x.file == y.file; });
}

}  // namespace

void EventSink::account(std::size_t bytes) noexcept {
  bytes_ += bytes;
  if (bytes_ >= limits_.bytes || trace_.ops.size() >= limits_.ops) full_.store(true, std::memory_order_relaxed);
}

StorageId EventSink::storage_id(void* memory) {
  const auto known = storages_.find(memory);
  if (known != storages_.end()) return known->second;
  const auto id = static_cast<StorageId>(trace_.storages.size());
  Storage& storage = trace_.storages.emplace_back();
  storages_.emplace(memory, id);
  if (keeper_.hold != nullptr) keeper_.hold(memory);
  if (keeper_.place != nullptr) keeper_.place(memory, &storage.address, &storage.size_bytes);
  account(sizeof(Storage) + kNodeBytes);
  return id;
}

TensorUse EventSink::placed(SeenTensor&& seen) {
  seen.use.storage = seen.memory == nullptr ? kNone : storage_id(seen.memory);
  if (seen.constant && seen.memory != nullptr) trace_.storages[seen.use.storage].origin = Origin::kConstant;
  return std::move(seen.use);
}

EventSink::Token EventSink::begin(BeginOp&& begun) {
  if (!on()) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  if (full()) {
    drop();
    return {};
  }
  const auto id = static_cast<OpId>(trace_.ops.size());
  Op& op = begun.op;
  // What a thread is inside of, and where it is, may have been passed to a trace that is gone by now.
  const bool same = begun.generation == generation_.load(std::memory_order_relaxed);
  for (OpId* outer : {&op.parent, &op.node}) {
    if (!same || *outer >= id) *outer = kNone;
  }
  if (!same || op.stack >= trace_.stacks.size()) op.stack = kNone;
  if (op.stack == kNone && op.parent != kNone && !trace_.ops[op.parent].is_node) op.stack = trace_.ops[op.parent].stack;
  // A custom optimizer may work in methods of its own that the program calls (a first and a second step), not in step()
  // alone.
  if (op.phase == Phase::kForward && op.stack != kNone && trace_.stacks[op.stack].in_optimizer)
    op.phase = Phase::kOptimizer;
  op.inputs.reserve(begun.inputs.size());
  for (SeenTensor& seen : begun.inputs) op.inputs.push_back(placed(std::move(seen)));
  if (begun.of_node) {
    const auto it = made_by_.find(*begun.of_node);
    if (it != made_by_.end()) op.forward = it->second;
  }
  if (begun.makes) made_by_.try_emplace(*begun.makes, id);
  const std::size_t bytes =
      sizeof op + op.name.capacity() + bytes_of(op.inputs) + bytes_of(op.scalars) + (begun.makes ? kNodeBytes : 0);
  trace_.ops.push_back(std::move(op));
  late_.began(trace_.ops, id);
  account(bytes);
  return {id, generation_.load(std::memory_order_relaxed)};
}

bool EventSink::end(Token token, EndOp&& ended) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (token.generation != generation_.load(std::memory_order_relaxed) || token.op >= trace_.ops.size()) return false;
  if (trace_.ops[token.op].end_order != 0) return false;
  std::vector<TensorUse> outputs;
  outputs.reserve(ended.outputs.size());
  for (SeenTensor& seen : ended.outputs) outputs.push_back(placed(std::move(seen)));
  for (const NodeKey key : ended.makes) made_by_.try_emplace(key, token.op);
  account(bytes_of(outputs) + bytes_of(ended.scalars) + ended.makes.size() * kNodeBytes);
  Op& op = trace_.ops[token.op];
  op.outputs = std::move(outputs);
  for (auto& [index, use] : ended.inputs) {
    if (index >= op.inputs.size()) continue;
    TensorUse& input = op.inputs[index];
    input.health = use.health;
    input.first_bad = use.first_bad;
    input.bad_rows = std::move(use.bad_rows);
  }
  for (ScalarUse& scalar : ended.scalars) op.scalars.push_back(std::move(scalar));
  if (ended.phase) op.phase = *ended.phase;
  op.is_view = ended.is_view;
  op.failed = ended.failed;
  op.captured = ended.captured;
  op.end_order = ++ends_;
  late_.ended(trace_.ops, token.op);
  return true;
}

std::uint32_t EventSink::stack_in_node(std::uint32_t stack, std::uint32_t called_from, OpId node) {
  if (stack == called_from) return kNone;
  Stack anew;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::vector<Stack>& all = trace_.stacks;
    if (stack >= all.size() || called_from >= all.size() || node >= trace_.ops.size()) return stack;
    if (!same_lines(all[stack], all[called_from])) return stack;
    const OpId forward = trace_.ops[node].forward;
    const std::uint32_t first = forward < trace_.ops.size() ? trace_.ops[forward].stack : kNone;
    if (first >= all.size()) return stack;
    anew.frames = all[first].frames;
    anew.module = all[stack].module;
  }
  return this->stack(std::move(anew));
}

std::uint32_t EventSink::stack(Stack&& stack) {
  if (stack.frames.empty()) return kNone;
  std::string key = stack.module + '\n' + stack.statement_context;
  for (const Frame& f : stack.frames) key += '\n' + f.file + ':' + std::to_string(f.line);
  key += '#' + std::to_string(stack.frames.front().site);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = stacks_.find(key);
  if (known != stacks_.end()) return known->second;
  if (full()) return kNone;
  const auto id = static_cast<std::uint32_t>(trace_.stacks.size());
  account(sizeof stack + kNodeBytes + 2 * key.size() + stack.frames.size() * (sizeof(Frame) + 32));
  trace_.stacks.push_back(std::move(stack));
  stacks_.emplace(std::move(key), id);
  return id;
}

void EventSink::name_memory(void* memory, Origin origin, const std::string& name, std::uint32_t stack) {
  if (memory == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (full() && !storages_.contains(memory)) return;  // no op of this trace has seen it
  Storage& storage = trace_.storages[storage_id(memory)];
  account(name.size());
  storage.origin = origin;
  storage.name = name;
  if (stack != kNone) storage.stack = stack;
}

void EventSink::ask_who_is_freed() {
  constexpr std::size_t kMostTimes = 8;
  std::lock_guard<std::mutex> lock(mutex_);
  if (keeper_.place == nullptr || trace_.freed_asked_at.size() >= kMostTimes) return;
  const auto now = static_cast<OpId>(trace_.ops.size());
  trace_.freed_asked_at.push_back(now);
  for (const auto& [memory, id] : storages_) {
    Storage& storage = trace_.storages[id];
    std::uint64_t address = 0;
    std::int64_t size_bytes = 0;
    if (storage.freed_before == kNone && storage.address != 0 && !keeper_.place(memory, &address, &size_bytes))
      storage.freed_before = now;
  }
}

std::string EventSink::module_of(Token token) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (token.generation != generation_.load(std::memory_order_relaxed) || token.op >= trace_.ops.size()) return {};
  const Op* op = &trace_.ops[token.op];
  if (op->stack >= trace_.stacks.size() && op->node < trace_.ops.size()) {
    const OpId forward = trace_.ops[op->node].forward;
    if (forward < trace_.ops.size()) op = &trace_.ops[forward];
  }
  return op->stack < trace_.stacks.size() ? trace_.stacks[op->stack].module : std::string();
}

StorageId EventSink::storage_of(void* memory) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = storages_.find(memory);
  return known == storages_.end() ? kNone : known->second;
}

void EventSink::add_sink(const std::string& kind, const std::string& name, SeenTensor&& value,
                         std::uint32_t micro_batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (trace_.sinks.size() >= kMaxTraceSinks) return drop();
  Sink sink{kind, name, placed(std::move(value)), ends_ + 1, micro_batch};
  account(sizeof sink + kind.size() + name.size() + bytes_of(sink.value));
  late_.looked_at(trace_.ops, sink.value);
  trace_.sinks.push_back(std::move(sink));
}

void EventSink::begin_anew(Trace* old) {
  std::unordered_map<void*, StorageId> held;
  Trace trace;
  std::unordered_map<std::string, std::uint32_t> stacks;
  std::unordered_map<NodeKey, OpId> made_by;
  LateWrites late;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    std::swap(trace, trace_);
    std::swap(held, storages_);
    std::swap(stacks, stacks_);
    std::swap(made_by, made_by_);
    std::swap(late, late_);
    bytes_ = 0;
    ends_ = 0;
    full_.store(limits_.ops == 0 || limits_.bytes == 0, std::memory_order_relaxed);
    trace.truncated |= dropped_.exchange(0, std::memory_order_relaxed) != 0;
  }
  // Freed outside of the lock: it takes time, and may run code of whom the memory belongs to.
  if (keeper_.release != nullptr) {
    for (const auto& [memory, id] : held) keeper_.release(memory);
  }
  if (old != nullptr) *old = std::move(trace);
}

Trace EventSink::take() {
  Trace trace;
  begin_anew(&trace);
  return trace;
}

void EventSink::clear() { begin_anew(nullptr); }

std::size_t EventSink::num_ops() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return trace_.ops.size();
}

std::size_t EventSink::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace finitude::record
