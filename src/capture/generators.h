// The states of a program's random number generators as bytes: what a step drew its numbers from.
// docs/format/capsule.md, "Generators".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace finitude::capture {

// Words of the Mersenne Twister that torch, numpy and Python's random share.
inline constexpr std::size_t kTwisterWords = 624;
inline constexpr std::size_t kMaxGenerators = 256;

// A torch.Generator of the CPU.
struct TorchGenerator {
  std::uint64_t seed = 0;
  std::uint32_t left = 1, next = 0;  // left 1..624; next 0..624, and together at most 625
  bool seeded = false;
  std::optional<float> next_float;  // the second of a pair of normal numbers
  std::optional<double> next_double;
  std::array<std::uint32_t, kTwisterWords> words{};
};

// Python's random, or numpy.random's global one. position: 0..624.
struct Twister {
  std::uint32_t position = 0;
  std::array<std::uint32_t, kTwisterWords> words{};
};

// A torch.Generator of a GPU: Philox numbers are counted, so this is all of it.
struct DeviceGenerator {
  std::string device;  // "cuda:0"
  bool known = false;
  std::uint64_t seed = 0, offset = 0;  // offset: a multiple of 4
};

struct Generators {
  std::optional<TorchGenerator> torch;  // the default one
  std::optional<Twister> python, numpy;
  std::vector<std::optional<TorchGenerator>> own;  // the program's own, in the order in which they were found
  std::vector<DeviceGenerator> devices;            // the default one of each GPU, then the program's own there
};

std::string write_generators(const Generators& generators);

// False: these bytes are not such states; every state that is given out can be put into a generator.
bool read_generators(std::string_view bytes, Generators* generators);

}  // namespace finitude::capture
