#include "compare/judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "compare/arguments.h"
#include "compare/tape_run.h"

namespace finitude::compare {
namespace {

constexpr std::size_t kMaxWalk = 4096;  // calls of one side only that are gone through from one input

class Judge {
 public:
  Judge(const Run& a, const Run& b, const std::vector<Row>& rows, const std::vector<Pair>& pairs)
      : a_(a), b_(b), rows_(rows), pairs_(pairs), row_of_a_(a.calls.size(), 0), row_of_b_(b.calls.size(), 0) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].a != kGap) row_of_a_[rows[r].a] = r;
      if (rows[r].b != kGap) row_of_b_[rows[r].b] = r;
    }
  }

  Judgement run(const std::vector<Distance>& results) {
    results_ = &results;
    readers_a_ = readers_of(a_);
    readers_b_ = readers_of(b_);
    others_ = same_results(a_, b_);
    for (std::size_t r = 0; r < rows_.size(); ++r) came_to_.push_back(paired(r) ? came_to(r) : CameTo());
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (paired(r)) look(r);
    }
    for (std::size_t i = 0; i < std::min(results.size(), others_.size()); ++i) {
      if (others_[i] == kNone || level(results[i], 0) == Level::kUnknown || level(results[i], 0) == Level::kSame)
        continue;
      origin(a_.results[i].value, b_.results[others_[i]].value, results[i], rows_.size(), Level::kDiffers);
    }
    std::stable_sort(out_.roots.begin(), out_.roots.end(),
                     [](const Root& x, const Root& y) { return x.seen_at < y.seen_at; });
    return std::move(out_);
  }

 private:
  bool paired(std::size_t r) const { return rows_[r].a != kGap && rows_[r].b != kGap; }
  const Call& a(std::size_t r) const { return a_.calls[rows_[r].a]; }
  const Call& b(std::size_t r) const { return b_.calls[rows_[r].b]; }

  // What came out of memory that nobody wrote says nothing, nor what is not the same twice.
  static bool speaks(const Run& run, const Tensor& input) {
    if (input.unsteady) return false;
    return input.source == kNone || !run.calls[input.source].fresh;
  }

  // What the two calls of a row came to.
  struct CameTo {
    Level out = Level::kUnknown;
    Distance worst;
    double bound = 0;
    bool dtype = false, both_nan = false, holds_nan = false;
  };

  CameTo came_to(std::size_t r) const {
    const Call &ca = a(r), &cb = b(r);
    const Pair& pair = pairs_[r];
    CameTo to;
    if (ca.fresh && cb.fresh) return to;
    const Noise noise = noise_of(ca, cb);
    for (std::size_t k = 0; k < std::min({ca.outputs.size(), cb.outputs.size(), pair.outputs.size()}); ++k) {
      const Tensor &ta = ca.outputs[k], &tb = cb.outputs[k];
      if ((!ta.used && !tb.used) || ta.unsteady || tb.unsteady) continue;
      const Distance& d = pair.outputs[k];
      to.dtype |= ta.element.dtype != tb.element.dtype;
      to.both_nan |= swallowed(ta, tb);
      to.holds_nan |= d.nan_in_both != 0;
      const double explained = noise.bound(d.scale);
      const Level l = ta.shape == tb.shape ? level(d, explained) : Level::kDiffers;
      if (l < to.out || (l == to.out && !(d.broken() && !to.worst.broken()) && d.relative() <= to.worst.relative()))
        continue;
      to.out = l;
      to.worst = d;
      to.bound = explained;
    }
    return to;
  }

  void look(std::size_t r) {
    const Call &ca = a(r), &cb = b(r);
    if (ca.fresh && cb.fresh) return;
    const auto& [out, worst, bound, dtype, both_nan, holds_nan] = came_to_[r];
    count(r, out, dtype);
    out_.same_nan += holds_nan && out == Level::kSame;
    if (both_nan && out_.both_nan == kNowhere && clean(ca) && clean(cb)) out_.both_nan = r;
    auto arguments = other_arguments(ca, cb);
    if (!arguments.empty()) out_.arguments.push_back(r);
    if (out == Level::kSame || out == Level::kUnknown) return;
    if (out == Level::kNoise && !meaningful_ && worst.relative() > out_.noise_growth) {
      out_.noise_growth = worst.relative();
      out_.noise_row = r;
    }
    explain(r, pairs_[r], out, worst, bound, std::move(arguments));
  }

  static bool clean(const Call& call) {
    return std::all_of(call.inputs.begin(), call.inputs.end(), [](const Tensor& t) { return t.health.ok(); });
  }

  void count(std::size_t r, Level out, bool dtype) {
    (out == Level::kSame      ? out_.same
     : out == Level::kNoise   ? out_.noise
     : out == Level::kDiffers ? out_.differ
                              : out_.unknown)++;
    if (dtype) out_.other_dtype.push_back(r);
  }

  void explain(std::size_t r, const Pair& pair, Level out, const Distance& worst, double bound,
               std::vector<std::pair<Scalar, Scalar>> arguments) {
    const Call &ca = a(r), &cb = b(r);
    const bool meaningful_before = meaningful_;
    double in = 0;
    bool differs = false, far = false, broken = false;
    for (std::size_t k = 0; k < std::min({ca.inputs.size(), cb.inputs.size(), pair.inputs.size()}); ++k) {
      const Tensor &ta = ca.inputs[k], &tb = cb.inputs[k];
      if (!speaks(a_, ta) || !speaks(b_, tb)) continue;
      const Distance& d = pair.inputs[k];
      const Level l = ta.shape == tb.shape ? level(d, own_bound(d)) : Level::kDiffers;
      if (l == Level::kSame || l == Level::kUnknown) continue;
      differs = true;
      far |= l == Level::kDiffers;
      broken |= d.broken();
      in = std::max(in, d.relative());
      origin(ta, tb, d, r, out);
    }
    Root root;
    root.row = root.seen_at = r;
    root.level = out;
    root.distance = worst;
    root.bound = bound;
    if (worst.broken() && !broken && out_.one_nan == kNowhere) out_.one_nan = r;
    // Traces do not say where the generator stood.
    const bool reported = ca.random_state != 0 && cb.random_state != 0;
    if (ca.random && cb.random &&
        (ca.random_state != cb.random_state || (arguments.empty() && (!reported || !one_form(ca, cb))))) {
      root.kind = Root::kRandom;
      root.level = Level::kDiffers;
      root.elsewhere = ca.random_state != cb.random_state;
      if (root.elsewhere) root.others = drawn_between(r);
      return add(std::move(root));
    }
    if (!arguments.empty() && (!far || pair.tried == Pair::kDisagrees)) {
      root.kind = Root::kArgument;
      root.level = Level::kDiffers;  // it is no matter of rounding, however small
      root.arguments = std::move(arguments);
      return add(std::move(root));
    }
    if (!differs && ca.op == kMemory) {
      root.kind = Root::kInput;
      root.of = ca.outputs.at(0);
      return add(std::move(root));
    }
    if (!differs && !one_form(ca, cb) && heals(r)) return;  // a sum in two parts
    if (!differs) return add(std::move(root));              // the same call on the same values
    if (pair.tried == Pair::kDisagrees) {
      root.level = Level::kDiffers;
      return add(std::move(root));
    }
    if (meaningful_before || meaningful_ || out != Level::kDiffers) return;
    if (worst.broken() && !broken) {
      root.kind = Root::kNonFinite;
      return add(std::move(root));
    }
    if (pair.tried == Pair::kAgrees) {  // grown, not made
      if (worst.relative() > out_.noise_growth) {
        out_.noise_growth = worst.relative();
        out_.noise_row = r;
      }
      return;
    }
    if (worst.max_abs > bound + kAmplified * in * worst.scale) add(std::move(root));
  }

  // Calls of one side alone that drew since the last draw of both: they moved its generator.
  std::vector<std::size_t> drawn_between(std::size_t r) const {
    std::vector<std::size_t> between;
    while (r-- > 0) {
      const bool in_a = rows_[r].a != kGap, in_b = rows_[r].b != kGap;
      if (!(in_a && a(r).random) && !(in_b && b(r).random)) continue;
      if (in_a && in_b) break;
      between.push_back(r);
    }
    std::reverse(between.begin(), between.end());
    return between;
  }

  static double own_bound(const Distance& d) { return kRoundings * epsilon(d.number) * d.scale; }

  // Where the difference of an input comes from, unless a row that was looked at explains it. It is no larger
  // matter than what came of it: sums do not mind which of two is added to which.
  void origin(const Tensor& ta, const Tensor& tb, const Distance& d, std::size_t seen_at, Level effect) {
    const bool in_a = ta.source != kNone, in_b = tb.source != kNone;
    const std::size_t ra = in_a ? row_of_a_[ta.source] : 0, rb = in_b ? row_of_b_[tb.source] : 0;
    // A result is behind all rows: it is where it was made.
    const std::size_t shown = seen_at < rows_.size() ? seen_at : in_a ? ra : in_b ? rb : seen_at;
    Root root;
    root.seen_at = seen_at;
    root.distance = d;
    root.bound = own_bound(d);
    root.of = ta;
    if (ta.name.empty()) root.of.name = tb.name;  // a dump of an older version has none
    if (ta.source == kNone && tb.source == kNone) {
      if (!ta.name.empty() && ta.name != tb.name && !tb.name.empty()) {
        root.kind = Root::kWiring;
        root.row = shown;
        root.level = effect;
        return add(std::move(root));
      }
      root.kind = Root::kInput;
      root.row = shown;
      root.level = std::min(effect, ta.shape == tb.shape ? level(d, root.bound) : Level::kDiffers);
      Level& reported = inputs_reported_[{ta.storage, tb.storage}];
      if (root.level <= reported) return;
      reported = root.level;
      return add(std::move(root));
    }
    if (in_a && in_b && ra == rb) return;
    const bool lone_a = in_a && !paired(ra), lone_b = in_b && !paired(rb);
    if (!lone_a && !lone_b) {
      if (heals(seen_at)) return;
      root.kind = Root::kWiring;
      root.row = shown;
      root.level = std::min(effect, level(d, root.bound));
      return add(std::move(root));
    }
    // Calls that one side has alone. What they had to begin with may differ already.
    Walk walk;
    if (lone_a) go_through(a_, row_of_a_, ta.source, walk);
    if (lone_b) go_through(b_, row_of_b_, tb.source, walk);
    const double scale = std::max(d.scale, walk.noise.scale);
    root.kind = Root::kOperators;
    root.row = std::min(lone_a ? ra : rb, lone_b ? rb : ra);
    for (const std::size_t r : walk.rows) root.row = std::min(root.row, r);
    root.bound = walk.noise.relative() * std::sqrt(static_cast<double>(walk.rows.size())) * scale +
                 kAmplified * walk.in * d.scale;
    root.level = std::min(effect, ta.shape == tb.shape ? level(d, root.bound) : Level::kDiffers);
    root.others.assign(walk.rows.begin(), walk.rows.end());
    if (meaningful_ && walk.broken) return;
    if (root.level == Level::kDiffers && heals(seen_at)) {
      healed_.insert(walk.rows.begin(), walk.rows.end());
      return;
    }
    // Made good where it could be seen, and here other things differ as well: backward uses what forward made.
    if (meaningful_ && std::includes(healed_.begin(), healed_.end(), walk.rows.begin(), walk.rows.end())) return;
    if (walk.drawn_a && walk.drawn_b && root.level == Level::kDiffers) drawn_otherwise(root);
    add(std::move(root));
  }

  // Whether what differs there is made good: every call that it reaches comes to the same again, as where one
  // multiplies before it divides. Nothing that the step came to hangs on it then.
  bool heals(std::size_t row) {
    if (row >= rows_.size() || !paired(row)) return false;
    return heals(a_, readers_a_, row_of_a_, rows_[row].a, true) &&
           heals(b_, readers_b_, row_of_b_, rows_[row].b, false);
  }
  bool heals(const Run& run, const std::vector<std::vector<std::uint32_t>>& readers,
             const std::vector<std::size_t>& row_of, std::uint32_t from, bool of_a) const {
    std::set<std::uint32_t> seen{from};
    std::vector<std::uint32_t> left{from};
    while (!left.empty()) {
      const std::uint32_t at = left.back();
      left.pop_back();
      bool is_read = false;
      for (const std::uint32_t reader : readers[at]) {
        if (reader < run.calls.size() && takes_form(run.calls[reader])) {
          // A loss, at which a backward begins. Where losses are not named it is a result.
          if (!run.says_results() && run.calls[reader].op == "aten::ones_like") return false;
          continue;
        }
        is_read = true;
        if (reader >= run.calls.size()) {
          if (!result_agrees(reader - run.calls.size(), of_a)) return false;
          continue;
        }
        const std::size_t r = row_of[reader];
        if (paired(r) && agree_again(r, run.calls[reader], at, of_a)) continue;
        if (!seen.insert(reader).second) continue;
        if (seen.size() > kMaxWalk) return false;
        left.push_back(reader);
      }
      // What nobody reads may be a result, unless the recording says what those are.
      if (!is_read && (!run.says_results() || run.calls[at].outputs.empty())) return false;
    }
    return true;
  }
  // What comes of both calls of a row is the same, or what they read of that one. NaN and Inf, which swallow all, say
  // nothing.
  bool agree_again(std::size_t r, const Call& reader, std::uint32_t of, bool of_a) const {
    const CameTo& to = came_to_[r];
    if (!to.both_nan && (to.out == Level::kSame || to.out == Level::kNoise)) return true;
    const std::vector<Distance>& in = pairs_[r].inputs;
    const std::vector<Tensor>& others = (of_a ? b(r) : a(r)).inputs;
    for (std::size_t k = 0; k < reader.inputs.size(); ++k) {
      const Tensor& t = reader.inputs[k];
      if (t.source != of && std::find(t.beneath.begin(), t.beneath.end(), of) == t.beneath.end()) continue;
      if (k >= in.size() || k >= others.size() || t.shape != others[k].shape || in[k].nan_in_both != 0 ||
          swallowed(t, others[k]))
        return false;
      const Level l = level(in[k], own_bound(in[k]));
      if (l != Level::kSame && l != Level::kNoise) return false;
    }
    return true;
  }
  static bool swallowed(const Tensor& ta, const Tensor& tb) {
    return ta.health.non_finite() != 0 && tb.health.non_finite() != 0;
  }
  bool result_agrees(std::size_t of, bool of_a) const {
    for (std::size_t i = 0; i < std::min(results_->size(), others_.size()); ++i) {
      if (others_[i] == kNone || (of_a ? i : others_[i]) != of) continue;
      const Distance& d = (*results_)[i];
      const Level l = level(d, own_bound(d));
      if (d.nan_in_both != 0 || swallowed(a_.results[i].value, b_.results[others_[i]].value)) return false;
      return l == Level::kSame || l == Level::kNoise;
    }
    return false;
  }

  // Both sides draw, by other operators: from then on their numbers are not each other's.
  void drawn_otherwise(Root& root) const {
    root.kind = Root::kRandom;
    std::size_t first_a = kNowhere, first_b = kNowhere;
    for (const std::size_t r : root.others) {
      if (rows_[r].a != kGap && a(r).random) first_a = std::min(first_a, r);
      if (rows_[r].b != kGap && b(r).random) first_b = std::min(first_b, r);
    }
    if (first_a == kNowhere || first_b == kNowhere) return;
    root.elsewhere = a(first_a).random_state != b(first_b).random_state;
  }

  struct Walk {
    std::set<std::size_t> rows;
    Noise noise;
    double in = 0;        // largest relative distance of what the calls read from rows with both sides
    bool broken = false;  // NaN or Inf in one of them on one side
    bool drawn_a = false, drawn_b = false;  // random numbers were
  };

  void go_through(const Run& run, const std::vector<std::size_t>& row_of, std::uint32_t call, Walk& walk) {
    std::vector<std::uint32_t> left{call};
    while (!left.empty() && walk.rows.size() < kMaxWalk) {
      const std::uint32_t at = left.back();
      left.pop_back();
      if (!walk.rows.insert(row_of[at]).second) continue;
      walk.noise = merge(walk.noise, noise_of(run.calls[at]));
      if (run.calls[at].random) (&run == &a_ ? walk.drawn_a : walk.drawn_b) = true;
      for (const Tensor& input : run.calls[at].inputs) {
        if (input.source == kNone) continue;
        const std::size_t r = row_of[input.source];
        if (!paired(r)) {
          left.push_back(input.source);
          continue;
        }
        for (const Distance& d : pairs_[r].outputs) {
          if (!d.known || d.same_bits) continue;
          walk.in = std::max(walk.in, d.relative());
          walk.broken |= d.broken();
        }
      }
    }
  }

  void add(Root root) {
    if (!root.others.empty()) {
      // One stretch of calls is one cause, in however many places it shows.
      for (Root& known : out_.roots) {
        if (known.others.empty()) continue;
        if (std::none_of(root.others.begin(), root.others.end(), [&](std::size_t r) {
              return std::find(known.others.begin(), known.others.end(), r) != known.others.end();
            }))
          continue;
        if (root.level > known.level) {
          root.row = std::min(root.row, known.row);
          known = std::move(root);
          meaningful_ |= known.level == Level::kDiffers;
        }
        return;
      }
    }
    meaningful_ |= root.level == Level::kDiffers;
    if (out_.roots.size() < kMaxRoots) out_.roots.push_back(std::move(root));
  }

  const Run &a_, &b_;
  const std::vector<Row>& rows_;
  const std::vector<Pair>& pairs_;
  std::vector<std::size_t> row_of_a_, row_of_b_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Level> inputs_reported_;
  const std::vector<Distance>* results_ = nullptr;
  std::vector<std::vector<std::uint32_t>> readers_a_, readers_b_;
  std::vector<std::uint32_t> others_;
  std::vector<CameTo> came_to_;   // by row
  std::set<std::size_t> healed_;  // rows of one side whose difference was made good
  bool meaningful_ = false;       // a root that rounding does not explain was met
  Judgement out_;
};

}  // namespace

const Root* Judgement::first() const {
  for (const Root& root : roots) {
    if (root.level == Level::kDiffers) return &root;
  }
  return nullptr;
}

const Root* Judgement::first_noise() const {
  for (const Root& root : roots) {
    if (root.level == Level::kNoise) return &root;
  }
  return nullptr;
}

std::string_view word(Root::Kind kind) noexcept {
  static constexpr std::array<std::string_view, 7> kWords = {"kernel", "argument", "random",    "operators",
                                                             "input",  "wiring",   "non-finite"};
  return kWords[kind];
}

Judgement judge(const Run& a, const Run& b, const std::vector<Row>& rows, const std::vector<Pair>& pairs,
                const std::vector<Distance>& results) {
  return Judge(a, b, rows, pairs).run(results);
}

}  // namespace finitude::compare
