// Where the armed observer puts what it sees: ops of several threads, gathered into one Trace in the order in which
// they began. Knows nothing of torch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record/late_writes.h"
#include "record/trace.h"

namespace finitude::record {

// A tensor as its observer hands it over. `memory` says which storage it lies in; the sink gives storages their ids.
struct SeenTensor {
  TensorUse use;           // its `storage` is filled in by the sink
  void* memory = nullptr;  // null: no readable memory
  bool constant = false;   // a number in the program
};

// Which forward op made the node of a backward op: both sides name it by the same key.
using NodeKey = std::uint64_t;

struct BeginOp {
  Op op;                         // without inputs and outputs
  std::uint64_t generation = 0;  // of the trace that op.parent, op.node and op.stack belong to
  std::vector<SeenTensor> inputs;
  std::optional<NodeKey> of_node;  // looked up: op.forward becomes the op that made this node
  std::optional<NodeKey> makes;    // this op will have made that node
};

struct EndOp {
  std::vector<SeenTensor> outputs;
  std::vector<std::pair<std::size_t, TensorUse>> inputs;  // by index: looked at once more
  std::vector<NodeKey> makes;
  std::vector<ScalarUse> scalars;  // what was learnt of them at the end
  std::optional<Phase> phase;      // where the end says better than the beginning
  bool is_view = false, failed = false, captured = false;
};

// Any thread may call anything at any time; each call takes the lock once and for a short time, so callers do their
// work (scans of memory, walks over the stack) before they call. What is past the bound is dropped and counted, and
// the trace says that it is truncated; an op that has begun may still end.
class EventSink {
 public:
  struct Limits {
    std::size_t ops = 2'000'000;
    std::size_t bytes = std::size_t{1} << 30;  // of the trace and the tables, estimated
  };
  // Keeps the address of a storage from being used again for as long as the sink knows it by that address. `hold` is
  // called with the sink locked.
  struct Keeper {
    void (*hold)(void* memory) = nullptr;
    void (*release)(void* memory) = nullptr;
    // Where the memory of a storage lies that is held. False: nowhere, or no longer. Called with the sink locked.
    bool (*place)(void* memory, std::uint64_t* address, std::int64_t* size_bytes) = nullptr;
  };
  // Names an op for as long as its trace lasts.
  struct Token {
    OpId op = kNone;
    std::uint64_t generation = 0;
    explicit operator bool() const noexcept { return op != kNone; }
  };

  EventSink() : EventSink(Limits{}, Keeper{}) {}
  EventSink(Limits limits, Keeper keeper)
      : limits_(limits), keeper_(keeper), full_(limits.ops == 0 || limits.bytes == 0) {}
  ~EventSink() { clear(); }
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;

  // Off, it takes in nothing new, but ops that have begun may end. The trace stays until clear() or take().
  void start() noexcept { on_.store(true, std::memory_order_release); }
  void stop() noexcept { on_.store(false, std::memory_order_release); }
  bool on() const noexcept { return on_.load(std::memory_order_acquire); }

  // True: a begin() now would be dropped, so the caller can spare itself the work and call drop(). Costs no lock.
  bool full() const noexcept { return full_.load(std::memory_order_relaxed); }
  void drop() noexcept { dropped_.fetch_add(1, std::memory_order_relaxed); }

  // No token: off, or past the bound. An op without a stack of its own takes over that of its parent, unless that is
  // a node: backward ops are not attributed to the line of the call.
  Token begin(BeginOp&& begun);
  // False: the trace it began in is gone.
  bool end(Token token, EndOp&& ended);

  // A stack, each different one kept once. kNone for an empty one and past the bound.
  std::uint32_t stack(Stack&& stack);
  // The stack of an op that `node` calls at the line from which the engine was called: none, as for any op of
  // backward's. What a module computes again there (a checkpoint) comes from the line that computed it first: that of
  // the forward op of the node.
  std::uint32_t stack_in_node(std::uint32_t stack, std::uint32_t called_from, OpId node);
  // Where the values of a storage came from. To be named before the trace is taken.
  void name_memory(void* memory, Origin origin, const std::string& name, std::uint32_t stack = kNone);
  // Asks of each storage whether its memory has been given back, before the op that begins next. Takes the time of a
  // look at each storage; past a few times per trace it does nothing.
  void ask_who_is_freed();
  // That it was called in; of one of a backward the one whose forward it derives. Empty: none, or a trace is gone.
  std::string module_of(Token token) const;
  // The storage that lies there in the present trace; kNone: it has not been seen.
  StorageId storage_of(void* memory) const;
  // A value as it is now: only writes that ended before this call count.
  void add_sink(const std::string& kind, const std::string& name, SeenTensor&& value, std::uint32_t micro_batch);

  // Changes with every trace: a token of another generation is of no use.
  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  // Moves the trace out; what comes now belongs to the next one.
  Trace take();
  void clear();

  std::size_t num_ops() const;
  std::size_t bytes() const;
  // Of the present trace.
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  StorageId storage_id(void* memory);
  TensorUse placed(SeenTensor&& seen);
  void account(std::size_t bytes) noexcept;
  void begin_anew(Trace* old);

  const Limits limits_;
  const Keeper keeper_;
  std::atomic<bool> on_ = false, full_;
  std::atomic<std::uint64_t> generation_ = 1, dropped_ = 0;

  mutable std::mutex mutex_;  // guards all below; generation_ changes only under it
  Trace trace_;
  std::unordered_map<void*, StorageId> storages_;
  std::unordered_map<std::string, std::uint32_t> stacks_;
  std::unordered_map<NodeKey, OpId> made_by_;
  LateWrites late_;
  std::size_t bytes_ = 0;
  std::uint32_t ends_ = 0;
};

}  // namespace finitude::record
