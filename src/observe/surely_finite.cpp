#include "observe/surely_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace finitude::observe {
namespace {

// An interval of finite numbers.
struct Range {
  double min = 0, max = 0;
  double abs() const { return std::max(std::fabs(min), std::fabs(max)); }
  // How near to zero it comes.
  double least() const { return min > 0 ? min : max < 0 ? -max : 0; }
};

class Operands {
 public:
  Operands(const std::vector<record::SeenTensor>& inputs, const std::vector<record::ScalarUse>& scalars)
      : inputs_(inputs), scalars_(scalars) {
    for (const record::SeenTensor& input : inputs) {
      if (input.use.dtype == sense::DType::kOther || input.constant) continue;
      const sense::DTypeInfo& info = sense::info(input.use.dtype);
      largest_ = std::min(largest_, info.max_finite);
      smallest_ = std::max(smallest_, info.min_normal);
      real_ = real_ && info.reals_per_element == 1;
    }
  }

  std::optional<Range> get(std::string_view arg) const {
    for (const record::SeenTensor& input : inputs_) {
      if (input.use.arg != arg) continue;
      const sense::Health& h = input.use.health;
      if ((input.use.dtype == sense::DType::kOther && !input.constant) || h.numel == 0 || !h.ok()) return std::nullopt;
      return Range{h.min, h.max};
    }
    for (const record::ScalarUse& scalar : scalars_) {
      if (scalar.arg != arg) continue;
      if (!scalar.number || !std::isfinite(*scalar.number)) return std::nullopt;
      return Range{*scalar.number, *scalar.number};
    }
    return std::nullopt;
  }
  // An argument that is a factor of 1 where it is not given.
  std::optional<double> factor(std::string_view arg) const {
    const bool given = std::any_of(scalars_.begin(), scalars_.end(), [&](const auto& s) { return s.arg == arg; });
    if (!given) return 1;
    const auto range = get(arg);
    return range ? std::optional(range->abs()) : std::nullopt;
  }
  // Rounding, and what a kernel multiplies first, stays far below the end of the format.
  bool fits(double bound) const { return bound < largest_ / 4; }
  // Subnormal numbers may be flushed to zero.
  bool divides(double least) const { return least >= smallest_ && fits(1 / least); }
  bool real() const { return real_; }

 private:
  const std::vector<record::SeenTensor>& inputs_;
  const std::vector<record::ScalarUse>& scalars_;
  double largest_ = std::numeric_limits<double>::max(), smallest_ = std::numeric_limits<double>::min();
  bool real_ = true;
};

bool quotient_fits(const Operands& all, const Range& self, double factor, const Range& over, double plus) {
  const double least = over.least();
  return all.divides(least) && all.fits(self.abs() * factor) && all.fits(self.abs() * factor / least + plus);
}

bool is(std::string_view op, std::string_view name) {
  constexpr std::string_view kAten = "aten::";
  if (!op.starts_with(kAten)) return false;
  op.remove_prefix(kAten.size());
  return op == name || (op.size() == name.size() + 1 && op.starts_with(name) && op.back() == '_');
}

}  // namespace

bool surely_finite(std::string_view op, const std::vector<record::SeenTensor>& inputs,
                   const std::vector<record::ScalarUse>& scalars) {
  const Operands all(inputs, scalars);
  if (!all.real()) return false;
  if (is(op, "copy")) {
    const auto from = all.get("src");
    return from && all.fits(from->abs());
  }
  const auto self = all.get("self");
  if (!self) return false;
  if (is(op, "neg")) return true;
  if (is(op, "sqrt")) return self->min >= 0;
  if (is(op, "lerp")) {
    const auto end = all.get("end"), weight = all.get("weight");
    if (!end || !weight) return false;
    const double both = self->abs() + end->abs();
    return all.fits(both + (1 + weight->abs()) * both);
  }
  if (is(op, "addcmul") || is(op, "addcdiv")) {
    const auto a = all.get("tensor1"), b = all.get("tensor2");
    const auto value = all.factor("value");
    if (!a || !b || !value) return false;
    if (is(op, "addcdiv")) return quotient_fits(all, *a, *value, *b, self->abs()) && quotient_fits(all, *a, 1, *b, 0);
    return all.fits(a->abs() * b->abs()) && all.fits(*value * a->abs()) &&
           all.fits(self->abs() + *value * a->abs() * b->abs());
  }
  const auto other = all.get("other");
  if (!other) return false;
  if (is(op, "mul")) return all.fits(other->abs()) && all.fits(self->abs() * other->abs());
  if (is(op, "div")) return quotient_fits(all, *self, 1, *other, 0) && all.fits(other->abs());
  if (is(op, "add") || is(op, "sub")) {
    const auto alpha = all.factor("alpha");
    return alpha && all.fits(*alpha * other->abs()) && all.fits(self->abs() + *alpha * other->abs());
  }
  return false;
}

}  // namespace finitude::observe
