// The states of the generators as a capsule holds them, field by field, since the structs of torch may change. What a
// capsule does not hold, the streams of numpy's and Python's own generators, stays out.
#include <cstring>

#include "capture/generators.h"
#include "rewind/snapshot_torch.h"

namespace finitude::bindings {
namespace {

static_assert(at::MERSENNE_STATE_N == capture::kTwisterWords);

// Nothing for a state that was not taken; restoring it later changes nothing. taken() is the reverse.
std::optional<capture::TorchGenerator> reported(const TorchRng& state) {
  if (!state.taken) return std::nullopt;
  capture::TorchGenerator out;
  out.seed = state.engine.seed_;
  out.left = static_cast<std::uint32_t>(state.engine.left_);
  out.next = state.engine.next_;
  out.seeded = state.engine.seeded_;
  out.next_float = state.next_float;
  out.next_double = state.next_double;
  for (std::size_t i = 0; i < out.words.size(); ++i) out.words[i] = state.engine.state_[i];
  return out;
}

TorchRng taken(const std::optional<capture::TorchGenerator>& state) {
  TorchRng out;
  out.taken = state.has_value();
  if (!state) return out;
  out.engine.seed_ = state->seed;
  out.engine.left_ = static_cast<int>(state->left);
  out.engine.next_ = state->next;
  out.engine.seeded_ = state->seeded;
  out.next_float = state->next_float;
  out.next_double = state->next_double;
  for (std::size_t i = 0; i < state->words.size(); ++i) out.engine.state_[i] = state->words[i];
  return out;
}

// Where the words and the position lie in a TwisterRng, in bytes.
struct Layout {
  std::size_t words, position;
};
constexpr Layout kPython = {4, 0}, kNumpy = {0, capture::kTwisterWords * 4};

std::optional<capture::Twister> reported(const TwisterRng& state, Layout layout) {
  if (!state.taken) return std::nullopt;
  capture::Twister out;
  std::memcpy(&out.position, state.bytes.data() + layout.position, sizeof out.position);
  std::memcpy(out.words.data(), state.bytes.data() + layout.words, sizeof out.words);
  return out;
}

TwisterRng taken(const std::optional<capture::Twister>& state, Layout layout) {
  TwisterRng out;
  out.taken = state.has_value();
  if (!state) return out;
  std::memcpy(out.bytes.data() + layout.position, &state->position, sizeof state->position);
  std::memcpy(out.bytes.data() + layout.words, state->words.data(), sizeof state->words);
  return out;
}

}  // namespace

// Own generators are known by their place in the list alone, as addresses mean nothing in another process. One that was
// not taken keeps its place.
std::string rng_bytes(const RngState& state) {
  capture::Generators all;
  all.torch = reported(state.torch_cpu);
  all.python = reported(state.python, kPython);
  all.numpy = reported(state.numpy, kNumpy);
  for (const TorchRng& own : state.own) {
    if (all.own.size() < capture::kMaxGenerators) all.own.push_back(reported(own));
  }
  for (std::size_t i = 0; i < state.devices.size() && all.devices.size() < capture::kMaxGenerators; ++i) {
    const DeviceRng& one = state.devices[i];
    if (std::string device = device_of_generator(i); !device.empty())
      all.devices.push_back({std::move(device), one.taken, one.seed, one.offset});
  }
  return capture::write_generators(all);
}

bool rng_from_bytes(std::string_view bytes, RngState* state) {
  capture::Generators all;
  // Nothing of `state` is changed before all bytes are understood.
  if (!capture::read_generators(bytes, &all)) return false;
  state->torch_cpu = taken(all.torch);
  state->python = taken(all.python, kPython);
  state->numpy = taken(all.numpy, kNumpy);
  state->own.clear();
  for (const auto& own : all.own) state->own.push_back(taken(own));
  state->devices.clear();
  for (const auto& one : all.devices) state->devices.push_back({one.known, one.seed, one.offset});
  return true;
}

}  // namespace finitude::bindings
