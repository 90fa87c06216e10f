// What locate must know of operators by name: which ones move values, which ones overwrite, which ones
// select. Families of PyTorch's operator set, not single cases.
#pragma once

#include <cstdint>
#include <string_view>

#include "record/trace.h"

namespace finitude::locate {

// Which kinds of non-finite value a tensor or number holds.
using Kinds = std::uint8_t;
inline constexpr Kinds kNan = 1, kPosInf = 2, kNegInf = 4, kAllKinds = 7;

Kinds kinds_of(const sense::Health& health) noexcept;
Kinds kinds_of(const record::ScalarUse& scalar) noexcept;

// "aten::_foreach_clamp_max_" -> "clamp_max".
std::string_view base_name(std::string_view name) noexcept;

// The operator that it runs inside of; kNone: none.
inline record::OpId parent_of(const record::Trace& trace, record::OpId id) noexcept {
  return trace.ops[id].parent < id ? trace.ops[id].parent : record::kNone;
}

// Has a C++ kernel: it may write memory that no traced op wrote.
bool is_dispatcher_op(const record::Op& op) noexcept;
// Its outputs are copies of input elements or of its scalar: fill, where, cat, index.
bool is_move(const record::Op& op) noexcept;
// A move that may change the number format.
bool is_cast(const record::Op& op) noexcept;
// Can leave a bad element out and so hide it: where, index, clamp, min.
bool is_select(const record::Op& op) noexcept;
// Never turns an infinity into a non-finite value of another kind: exp, log, a cast.
bool is_monotone(const record::Op& op) noexcept;
// A reduction that leaves NaN out: no NaN of its result comes from one that it read.
bool skips_nan(const record::Op& op) noexcept;
// Multiplies and adds up what it reads: matmul, convolution, a norm. An infinity is no mask there.
bool is_product(const record::Op& op) noexcept;
// Takes shape and type of its input and none of its values: zeros_like, new_empty.
bool takes_only_the_shape(const record::Op& op) noexcept;
// Hands a number to the host.
bool is_item(const record::Op& op) noexcept;
// The k-th output depends on the k-th member of each list only.
bool is_list_op(const record::Op& op) noexcept;

// Are all tensors and numbers that it computes with finite?
bool inputs_finite(const record::Op& op) noexcept;

// The value this written input had before does not matter to the op: copy_, fill_, the `out` of an out= call.
bool is_overwritten(const record::Op& op, const record::TensorUse& input) noexcept;

}  // namespace finitude::locate
