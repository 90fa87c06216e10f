#include "compare/noise.h"

#include <algorithm>
#include <cmath>

namespace finitude::compare {
namespace {

// The words of an operator's name: "aten::_log_softmax_backward_data" -> log, softmax, backward, data.
template <typename Test>
bool any_word(std::string_view name, const Test& test) {
  if (const std::size_t colons = name.rfind(':'); colons != std::string_view::npos) name.remove_prefix(colons + 1);
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('_'), name.size());
    if (end != 0 && test(name.substr(0, end))) return true;
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return false;
}

bool contracts(std::string_view name) {
  return any_word(name, [](std::string_view w) {
    return w.ends_with("mm") || w.ends_with("mv") || w.ends_with("dot") || w.starts_with("conv") || w == "thnn" ||
           w == "matmul" || w == "linear" || w == "bilinear" || w == "einsum" || w == "attention" || w == "lstm" ||
           w == "gru" || w == "rnn" || w == "cdist";
  });
}

// Elements of the output depend on many of the input though there are as many.
bool normalises(std::string_view name) {
  return any_word(name, [](std::string_view w) {
    return w.ends_with("norm") || w.ends_with("softmax") || w.starts_with("cum") || w.starts_with("logcum") ||
           w.starts_with("fft") || w == "linalg" || w == "svd" || w == "ctc" || w == "var" || w == "std";
  });
}

bool averages(const Call& call) {
  if (any_word(call.op, [](std::string_view w) { return w == "mean" || w == "avg"; })) return true;
  return std::any_of(call.scalars.begin(), call.scalars.end(),
                     [](const Scalar& s) { return s.arg == "reduction" && s.text == "mean"; });
}

double rms(const Tensor& t) {
  const double n = static_cast<double>(t.health.finite());
  if (n == 0) return 0;
  return t.health.sum_sq > 0 ? std::sqrt(t.health.sum_sq / n) : t.health.absmax;
}

}  // namespace

Noise noise_of(const Call& call) {
  Noise noise;
  double out = 0, largest = 0, first = 0, second = 0, size_first = 0, size_second = 0, least_dim = 0;
  for (const Tensor& t : call.outputs) {
    noise.epsilon = std::max(noise.epsilon, epsilon(t.element.number));
    if (is_float(t.element.number)) out = std::max(out, static_cast<double>(t.numel()));
  }
  for (const Tensor& t : call.inputs) {
    if (!is_float(t.element.number)) continue;
    noise.epsilon = std::max(noise.epsilon, epsilon(t.element.number));
    const double n = static_cast<double>(t.numel());
    if (n > largest) {
      largest = n;
      least_dim = n;
      for (const std::int64_t size : t.shape) {
        if (size > 1) least_dim = std::min(least_dim, static_cast<double>(size));
      }
      if (t.shape.size() < 2) least_dim = 1;
    }
    if (n > size_first) {
      size_second = size_first;
      second = first;
      size_first = n;
      first = rms(t);
    } else if (n > size_second) {
      size_second = n;
      second = rms(t);
    }
  }
  if (out == 0 || largest == 0) return noise;
  double terms = std::max(1.0, largest / out);
  if (contracts(call.op)) {
    terms = std::max(terms, std::sqrt(size_first * std::max(size_second, 1.0) / out));
    noise.scale = std::sqrt(terms) * first * (size_second > 0 ? second : 1);
  } else if (terms > 1) {
    noise.scale = std::sqrt(terms) * first / (averages(call) ? terms : 1);
  } else if (normalises(call.op)) {
    terms = std::max(terms, largest / std::max(1.0, least_dim));
  }
  noise.terms = std::min(terms, kMostTerms);
  return noise;
}

Noise merge(const Noise& a, const Noise& b) {
  return {std::max(a.epsilon, b.epsilon), std::max(a.terms, b.terms), std::max(a.scale, b.scale)};
}

Noise noise_of(const Call& a, const Call& b) { return merge(noise_of(a), noise_of(b)); }

double Noise::relative() const noexcept { return kRoundings * epsilon * std::sqrt(terms); }

double Noise::bound(double largest) const noexcept { return relative() * std::max(largest, scale); }

Level level(const Distance& d, double bound) noexcept {
  if (!d.known) return Level::kUnknown;
  if (d.same_bits) return Level::kSame;
  if (d.broken()) return Level::kDiffers;
  if (d.differing == d.nan_in_both) return Level::kSame;
  if (!is_float(d.number)) return Level::kDiffers;
  return d.max_abs <= bound ? Level::kNoise : Level::kDiffers;
}

std::string_view word(Level level) noexcept {
  switch (level) {
    case Level::kSame:
      return "same";
    case Level::kNoise:
      return "noise";
    case Level::kDiffers:
      return "differs";
    case Level::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace finitude::compare
