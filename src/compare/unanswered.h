// Calls of one side alone that lead to what its step comes to, where nothing of the other side is against that.
// Whatever else is equal, of such two runs nobody can say that they are the same.
#pragma once

#include <cstddef>
#include <vector>

#include "compare/align.h"
#include "compare/judge.h"
#include "compare/run.h"

namespace finitude::compare {

struct Unanswered {
  std::vector<std::size_t> rows;   // of such calls: they make a loss, a gradient, a NaN or a result
  std::size_t in_a = 0, in_b = 0;  // how many of them
  bool few = false;  // less than half of the calls of the shorter run have a partner, and no result says more
  bool any() const noexcept { return few || !rows.empty(); }
};

Unanswered unanswered(const Run& a, const Run& b, const std::vector<Row>& rows);

// Nothing of one represents anything of the other: there is nothing to say.
bool nothing_compared(const Judgement& judgement, const std::vector<Distance>& results);

}  // namespace finitude::compare
