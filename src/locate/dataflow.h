// Who wrote what is now in memory: for every storage, which write events its bytes may hold bad values of.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "locate/op_kinds.h"
#include "record/trace.h"

namespace finitude::locate {

using EventId = std::uint32_t;
using LayerId = std::uint32_t;

// What a non-finite value is there for. A set of bits where several values may be meant.
using Labels = std::uint8_t;
inline constexpr Labels kIntended = 1;         // put there on purpose: a mask, an impossible event
inline constexpr Labels kUninit = 2;           // memory that nobody has written yet
inline constexpr Labels kDamaged = 4;          // everything else, not written by a gradient computation
inline constexpr Labels kDamagedGradient = 8;  // everything else, written by a gradient computation
inline constexpr Labels kAnyDamage = kDamaged | kDamagedGradient;

// A layer is one bad write on top of what the bytes held before (`prev`), or the union of two stacks (`prev`,
// `other`). Layers never change once made, so readers of all times can share them. A dense write starts a new
// stack.
struct Layer {
  EventId event = record::kNone;
  LayerId prev = record::kNone, other = record::kNone;
  Kinds kinds = 0;  // of this write alone
  Labels label = 0;
  Labels labels[3] = {0, 0, 0};  // of the whole stack, per kind: NaN, +Inf, -Inf
  bool open = false;             // below it all there are bytes that no traced op wrote
};

// What may explain the bad values that one use of a tensor shows.
struct Source {
  LayerId layer = record::kNone;
  std::uint32_t input = record::kNone;  // index into Op::inputs; kNone: a scalar argument
  Kinds kinds = 0;                      // of the reader
  Labels labels = 0;
  bool top_only = false;  // the top of the stack is exactly the tensor that is read
};

struct Found {
  Kinds kinds = 0;  // kinds that the sources account for
  Labels labels = 0;
  bool unwritten = false;  // part of the range was never written by a traced op
};

// The contents of all storages at one moment. Spans are half-open byte ranges; clean spans next to each other
// are kept as one, so the cost of a read is in the bad spans it meets, and too many of those are bundled.
class Contents {
 public:
  explicit Contents(std::size_t storages) : spans_(storages) {}

  // `event`'s bad values now lie in `use`; `kinds` of them.
  void write_bad(const record::TensorUse& use, EventId event, Kinds kinds, Labels label);
  void write_clean(const record::TensorUse& use);
  // A stack of its own for values that are in no span (what a storage held before the trace).
  LayerId lone_layer(EventId event, Kinds kinds, Labels label);

  Found read(const record::TensorUse& use, Kinds kinds, std::uint32_t input, std::vector<Source>* out);

  std::vector<Layer> layers;
  // Per event, the tensor it wrote where that was not dense; null otherwise. Owned by the trace.
  std::vector<const record::TensorUse*> geometry;

 private:
  struct Span {
    std::int64_t end;
    LayerId top;  // kNone: written and clean
  };
  using Spans = std::map<std::int64_t, Span>;
  void split(Spans* spans, std::int64_t at);
  Spans::iterator clear(Spans* spans, std::int64_t begin, std::int64_t end);
  bool same_view(LayerId layer, const record::TensorUse& use) const;
  LayerId push(EventId event, Kinds kinds, Labels label, LayerId below, bool open);
  LayerId join(LayerId a, LayerId b);

  std::vector<Spans> spans_;
};

Labels labels_of(const Layer& layer, Kinds kinds) noexcept;

}  // namespace finitude::locate
