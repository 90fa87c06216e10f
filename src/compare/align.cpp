#include "compare/align.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "compare/edits.h"

namespace finitude::compare {
namespace {

// Rounding leaves magnitudes nearly as they are.
bool near(double a, double b) { return a > 0 && std::fabs(a - b) <= 1e-3 * a; }

// How alike two calls of one name are; calls of two names are never paired. A gap on each side costs 2.
int likeness(const Key& a, const Key& b) {
  if (a.name != b.name) return -1;
  const auto both = [](std::uint64_t x, std::uint64_t y) { return x == y && x != 0; };
  return 3 + (a.dtypes == b.dtypes) + 2 * (a.shapes == b.shapes) + 3 * (a.memory == b.memory) +
         (a.scalars == b.scalars) + both(a.place, b.place) + 6 * both(a.values, b.values) + 3 * both(a.reads, b.reads) +
         2 * near(a.taken, b.taken) + 3 * near(a.magnitude, b.magnitude);
}

// As good a pair as there can be, so that none is looked for. Calls of one form with other numbers in their arguments
// may be two that follow each other, `x * 0.5` and `x * 1.25`; those that read other numbers may be made in another
// order, as the gradients of three layers of one size.
bool same(const Key& a, const Key& b) {
  const bool reads_alike = a.taken == 0 || b.taken == 0 || near(a.taken, b.taken);
  return a.form == b.form && reads_alike && (a.scalars == b.scalars || (a.values == b.values && a.values != 0));
}

class Aligner {
 public:
  Aligner(const std::vector<Key>& a, const std::vector<Key>& b, const AlignLimits& limits)
      : a_(a), b_(b), limits_(limits) {}

  std::vector<Row> run() {
    part({0, a_.size(), 0, b_.size()}, 0);
    return std::move(rows_);
  }

 private:
  struct Part {
    std::size_t a, a_end, b, b_end;
    std::size_t m() const { return a_end - a; }
    std::size_t n() const { return b_end - b; }
  };
  static constexpr int kDeepest = 32;  // cuts at anchors inside of cuts at anchors

  void pair(std::size_t i, std::size_t j) {
    rows_.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j)});
  }
  void gaps(const Part& p) {
    for (std::size_t i = p.a; i < p.a_end; ++i) rows_.push_back({static_cast<std::uint32_t>(i), kGap});
    for (std::size_t j = p.b; j < p.b_end; ++j) rows_.push_back({kGap, static_cast<std::uint32_t>(j)});
  }

  void part(Part p, int depth) {
    while (p.m() != 0 && p.n() != 0 && same(a_[p.a], b_[p.b])) pair(p.a++, p.b++);
    std::size_t same_end = 0;
    while (p.m() != 0 && p.n() != 0 && same(a_[p.a_end - 1], b_[p.b_end - 1])) {
      --p.a_end;
      --p.b_end;
      ++same_end;
    }
    middle(p, depth);
    for (std::size_t i = 0; i < same_end; ++i) pair(p.a_end + i, p.b_end + i);
  }

  void middle(const Part& p, int depth) {
    if (p.m() == 0 || p.n() == 0) return gaps(p);
    if (p.m() <= limits_.cells / p.n()) return table(p);
    if (depth == 0 && by_edits(p)) return;
    if (depth <= kDeepest && by_anchors(p, depth)) return;
    by_blocks(p);
  }

  // Between what is the same in a shortest edit script, likeness decides.
  bool by_edits(const Part& p) {
    std::vector<std::uint64_t> a, b;
    for (std::size_t i = p.a; i < p.a_end; ++i) a.push_back(a_[i].form);
    for (std::size_t j = p.b; j < p.b_end; ++j) b.push_back(b_[j].form);
    Places same;
    if (!common(a, b, limits_.edits, &same)) return false;
    between(p, same, 1);
    return true;
  }

  // Calls whose form occurs once in each, those of them that stand in the same order.
  bool by_anchors(const Part& p, int depth) {
    struct Seen {
      std::uint32_t a = 0, b = 0, in_a = 0, in_b = 0;
    };
    std::unordered_map<std::uint64_t, Seen> seen;
    for (std::size_t i = p.a; i < p.a_end; ++i) {
      Seen& s = seen[a_[i].form];
      s.a = static_cast<std::uint32_t>(i - p.a);
      ++s.in_a;
    }
    for (std::size_t j = p.b; j < p.b_end; ++j) {
      Seen& s = seen[b_[j].form];
      s.b = static_cast<std::uint32_t>(j - p.b);
      ++s.in_b;
    }
    Places once;
    for (std::size_t i = p.a; i < p.a_end; ++i) {
      const Seen& s = seen[a_[i].form];
      if (s.in_a == 1 && s.in_b == 1) once.emplace_back(s.a, s.b);
    }
    const auto rising = longest_rising(once);
    if (rising.empty()) return false;
    between(p, rising, depth + 1);
    return true;
  }

  void between(const Part& p, const Places& fixed, int depth) {
    std::size_t i = p.a, j = p.b;
    for (const auto& [x, y] : fixed) {
      part({i, p.a + x, j, p.b + y}, depth);
      pair(p.a + x, p.b + y);
      i = p.a + x + 1;
      j = p.b + y + 1;
    }
    part({i, p.a_end, j, p.b_end}, depth);
  }

  // Nothing distinguishes them and they are long: cut both into as many pieces, and each with its own.
  void by_blocks(const Part& p) {
    std::size_t pieces = 2;
    while ((p.m() / pieces + 1) * (p.n() / pieces + 1) > limits_.cells && pieces < std::min(p.m(), p.n())) pieces *= 2;
    pieces = std::min(pieces, std::min(p.m(), p.n()));
    // The work of all tables together stays within a few of the largest.
    while (pieces < std::min(p.m(), p.n()) && (p.m() / pieces + 1) * (p.n() / pieces + 1) * pieces > 4 * limits_.cells)
      pieces = std::min(pieces * 2, std::min(p.m(), p.n()));
    for (std::size_t k = 0; k < pieces; ++k) {
      const Part piece{p.a + p.m() * k / pieces, p.a + p.m() * (k + 1) / pieces, p.b + p.n() * k / pieces,
                       p.b + p.n() * (k + 1) / pieces};
      if (piece.m() == 0 || piece.n() == 0 || piece.m() > limits_.cells / piece.n()) {
        gaps(piece);
      } else {
        table(piece);
      }
    }
  }

  // Needleman and Wunsch: the rows of the greatest sum of likeness, gaps costing one each.
  void table(const Part& p) {
    const std::size_t m = p.m(), n = p.n();
    enum : std::uint8_t { kPair, kSkipA, kSkipB };
    std::vector<std::uint8_t> from((m + 1) * (n + 1));
    std::vector<int> above(n + 1), row(n + 1);
    for (std::size_t j = 0; j <= n; ++j) {
      above[j] = -static_cast<int>(j);
      from[j] = kSkipB;
    }
    for (std::size_t i = 1; i <= m; ++i) {
      row[0] = -static_cast<int>(i);
      from[i * (n + 1)] = kSkipA;
      for (std::size_t j = 1; j <= n; ++j) {
        int best = row[j - 1] - 1;  // of calls of one side only those of A come first
        std::uint8_t way = kSkipB;
        if (above[j] - 1 > best) {
          best = above[j] - 1;
          way = kSkipA;
        }
        if (const int alike = likeness(a_[p.a + i - 1], b_[p.b + j - 1]); alike >= 0 && above[j - 1] + alike >= best) {
          best = above[j - 1] + alike;
          way = kPair;
        }
        row[j] = best;
        from[i * (n + 1) + j] = way;
      }
      std::swap(above, row);
    }
    std::vector<Row> back;
    for (std::size_t i = m, j = n; i != 0 || j != 0;) {
      const std::uint8_t way = from[i * (n + 1) + j];
      Row r;
      if (way != kSkipB) r.a = static_cast<std::uint32_t>(p.a + --i);
      if (way != kSkipA) r.b = static_cast<std::uint32_t>(p.b + --j);
      back.push_back(r);
    }
    rows_.insert(rows_.end(), back.rbegin(), back.rend());
  }

  const std::vector<Key>& a_;
  const std::vector<Key>& b_;
  const AlignLimits limits_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<Row> align(const std::vector<Key>& a, const std::vector<Key>& b, const AlignLimits& limits) {
  return Aligner(a, b, limits).run();
}

}  // namespace finitude::compare
