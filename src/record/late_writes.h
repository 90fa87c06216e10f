// What collective operations write, reported of when it is seen: they may continue after their call has ended, so that
// what their tensors hold at its end is, by chance, from before or from after.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "record/trace.h"

namespace finitude::record {

// Follows one trace as it is gathered. A tensor of a collective that was finite at the end of its call and is not when
// it is looked at next, with no write in between, is reported as an output of the collective. What lay in one that it
// only writes is no value of its own. A backend may bring what it got out of a buffer of its own, by operators inside
// of the call, on a thread of its own, or when the call is waited for: such an op is part of the collective, and is
// left without inputs and outputs. Not for several threads at a time.
class LateWrites {
 public:
  // An op with what it was given; `ops` has no more of it yet.
  void began(std::vector<Op>& ops, OpId id);
  // An op that is complete in `ops`: what it wrote, or had written by others.
  void ended(std::vector<Op>& ops, OpId id);
  // A tensor as it is now, not written since by the op that hands it over. after_wait: the collective is surely over,
  // so finite values are its own too.
  void looked_at(std::vector<Op>& ops, const TensorUse& use, bool after_wait = false);

 private:
  struct Open {
    OpId op;
    std::int64_t begin, end;      // bytes of the storage
    std::uint32_t input, output;  // of the op: where this tensor is; kNone: not there
  };
  void open(const Op& op, OpId id, const TensorUse& use, std::uint32_t input, std::uint32_t output);
  void written(OpId by, const TensorUse& use);
  bool is_open(const TensorUse& use) const;  // exactly these bytes
  void note_first(const std::vector<Op>& ops, const Op& op, const std::vector<TensorUse>& uses);
  bool is_inside(const std::vector<Op>& ops, const Op& op) const;
  bool is_of_backend(const std::vector<Op>& ops, const Op& op) const;
  bool is_exchanged(const std::vector<Op>& ops, const TensorUse& use) const;

  std::unordered_map<StorageId, std::vector<Open>> open_;
  std::vector<OpId> running_;                             // collectives whose calls have not ended
  std::unordered_set<StorageId> of_backend_, of_nobody_;  // first seen inside of a call; by an op without a caller
  StorageId first_unseen_ = 0;
};

}  // namespace finitude::record
