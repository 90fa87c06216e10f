#include "observe/settings_precision_torch.h"

#include <ATen/Context.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace finitude::observe {
namespace {

// In the order of at::Float32Backend, at::Float32Op and at::Float32Precision.
constexpr std::array<std::string_view, 3> kBackends{"generic", "cuda", "mkldnn"};
constexpr std::array<std::string_view, 4> kOps{"all", "conv", "rnn", "matmul"};
constexpr std::array<std::string_view, 4> kPrecisions{"none", "ieee", "tf32", "bf16"};

// torch 2.9 names them by strings, later ones by enumerators.
template <typename To, std::size_t N>
std::decay_t<To> as(const std::array<std::string_view, N>& names, std::size_t number) {
  if constexpr (std::is_enum_v<std::decay_t<To>>)
    return static_cast<std::decay_t<To>>(number);
  else
    return std::decay_t<To>(names[number]);
}

template <typename Precision>
std::string_view name_of(const Precision& precision) {
  for (std::size_t i = 1; i < kPrecisions.size(); ++i) {
    if (precision == as<Precision>(kPrecisions, i)) return kPrecisions[i];
  }
  return kPrecisions[0];
}

// Calls `visit(key, precision now, set)` for each pair of a backend and a kind of operator.
template <typename Context, typename Visit>
void visit_all(Context& context, const Visit& visit) {
  if constexpr (requires { &Context::float32Precision; }) {
    const auto visit_with = [&]<typename P, typename B, typename O>(P (Context::*get)(B, O) const) {
      for (std::size_t b = 1; b < kBackends.size(); ++b) {
        for (std::size_t o = 1; o < kOps.size(); ++o) {
          const auto set = [&](std::size_t p) {
            context.setFloat32Precision(as<B>(kBackends, b), as<O>(kOps, o), as<P>(kPrecisions, p));
          };
          visit(std::string(kBackends[b]) + "." + std::string(kOps[o]) + "=",
                name_of<std::decay_t<P>>((context.*get)(as<B>(kBackends, b), as<O>(kOps, o))), set);
        }
      }
    };
    visit_with(&Context::float32Precision);
  }
}

}  // namespace

std::string fp32_precision() {
  std::string text;
  visit_all(at::globalContext(), [&](const std::string& key, std::string_view now, const auto&) {
    if (now != kPrecisions[0]) text += (text.empty() ? "" : " ") + key + std::string(now);
  });
  return text;
}

void set_fp32_precision(const std::string& wanted) {
  const std::string words = " " + wanted + " ";
  visit_all(at::globalContext(), [&](const std::string& key, std::string_view now, const auto& set) {
    std::size_t precision = 0;
    for (std::size_t p = 1; p < kPrecisions.size(); ++p) {
      if (words.find(" " + key + std::string(kPrecisions[p]) + " ") != std::string::npos) precision = p;
    }
    if (now == kPrecisions[precision]) return;
    try {
      set(precision);
    } catch (const std::exception&) {  // not a precision of that backend
    }
  });
}

}  // namespace finitude::observe
