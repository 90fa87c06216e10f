#include "compare/unanswered.h"

#include <algorithm>

namespace finitude::compare {
namespace {

// Chains of calls of one side alone. One that a call of both reads, or a result of both, is answered there.
class Side {
 public:
  // paired: by call; reported: by result, the other side has it too.
  Side(const Run& run, const std::vector<bool>& paired, const std::vector<bool>& reported)
      : run_(run), paired_(paired), reported_(reported), readers_(readers_of(run)), answered_(run.calls.size()) {
    has_backward_ = std::any_of(run.calls.begin(), run.calls.end(), [](const Call& c) { return c.of_gradient; });
    for (std::size_t i = run.calls.size(); i-- > 0;) answered_[i] = answered(i);
  }

  // Does it make what the step comes to, with nothing against it?
  bool lacks_answer(std::uint32_t call) const {
    const Call& c = run_.calls[call];
    if (paired_[call] || c.fresh || answered_[call]) return false;
    const auto is_read_by = [&](const auto& what) {
      return std::any_of(readers_[call].begin(), readers_[call].end(), what);
    };
    if (run_.says_results()) return is_read_by([&](std::uint32_t reader) { return reader >= run_.calls.size(); });
    const bool loss =
        is_read_by([&](std::uint32_t reader) { return reader < run_.calls.size() && takes_form(run_.calls[reader]); });
    return std::any_of(c.outputs.begin(), c.outputs.end(), [&](const Tensor& t) {
      return t.health.nan != 0 || (is_float(t.element.number) && (loss || c.of_gradient || !has_backward_));
    });
  }

 private:
  bool answered(std::size_t call) const {
    return std::any_of(readers_[call].begin(), readers_[call].end(), [&](std::uint32_t reader) {
      if (reader >= run_.calls.size()) return static_cast<bool>(reported_[reader - run_.calls.size()]);
      return !takes_form(run_.calls[reader]) && (paired_[reader] || answered_[reader]);
    });
  }

  const Run& run_;
  const std::vector<bool>&paired_, &reported_;
  std::vector<std::vector<std::uint32_t>> readers_;
  std::vector<bool> answered_;  // by call
  bool has_backward_ = false;   // else any number may be what the run is for
};

}  // namespace

Unanswered unanswered(const Run& a, const Run& b, const std::vector<Row>& rows) {
  std::vector<bool> paired_a(a.calls.size()), paired_b(b.calls.size());
  std::size_t pairs = 0;
  for (const Row& row : rows) {
    if (row.a == kGap || row.b == kGap) continue;
    paired_a[row.a] = paired_b[row.b] = true;
    ++pairs;
  }
  std::vector<bool> reported_a(a.results.size()), reported_b(b.results.size());
  const std::vector<std::uint32_t> others = same_results(a, b);
  bool reported = false;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i] == kNone) continue;
    reported_a[i] = reported_b[others[i]] = true;
    reported = a.says_results() && b.says_results();
  }
  Unanswered out;
  const Side side_a(a, paired_a, reported_a), side_b(b, paired_b, reported_b);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const bool in_a = rows[r].a != kGap && side_a.lacks_answer(rows[r].a);
    const bool in_b = rows[r].b != kGap && side_b.lacks_answer(rows[r].b);
    out.in_a += in_a;
    out.in_b += in_b;
    if (in_a || in_b) out.rows.push_back(r);
  }
  out.few = !reported && 2 * pairs < std::min(a.calls.size(), b.calls.size());
  return out;
}

bool nothing_compared(const Judgement& judgement, const std::vector<Distance>& results) {
  return judgement.roots.empty() && judgement.same + judgement.noise + judgement.differ == 0 &&
         std::none_of(results.begin(), results.end(), [](const Distance& d) { return d.known; });
}

}  // namespace finitude::compare
