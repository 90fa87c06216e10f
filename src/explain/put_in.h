// Infinities that were put in on purpose (a filter of logits, a padding, an open bound): what wrote them, and
// where they come out of what respects them, before arithmetic meets them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "explain/evidence.h"

namespace finitude::explain {

struct PutIn {
  record::OpId by = record::kNone;               // the op that wrote them
  record::StorageId carried_by = record::kNone;  // the batch field, buffer or other memory that they came in with
  record::OpId made = record::kNone;          // the op that made what the first arithmetic reads; kNone: it came in so
  record::OpId looked_up_by = record::kNone;  // the call that took them out of a table
  const record::TensorUse* table = nullptr;   // that table; null: they came out of none
  std::vector<std::pair<record::OpId, std::string>>
      readers;       // that arithmetic, on the way to any of the births: op, argument
  double value = 0;  // +Inf or -Inf, as it is read there; 0: both
};

// Of a birth whose op reads infinities, no NaN, that were meant; nothing where they were computed of finite
// numbers.
std::optional<PutIn> put_in(const Scene& scene);

// "; the infinities are written by aten::masked_fill at model.py:12", "; the infinities come with batch[2]".
std::string reported_source(const Scene& scene, const PutIn& source);

// The edit that takes them out before that arithmetic, as torch.where would, after those that the finding
// has.
void mend_before_arithmetic(const Scene& scene, const PutIn& source, Finding* finding);

}  // namespace finitude::explain
