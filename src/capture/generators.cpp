#include "capture/generators.h"

#include "capture/tape.h"
#include "capture/wire.h"

namespace finitude::capture {
namespace {

constexpr std::uint8_t kVersion = 1, kVersionWithDevices = 2;

void write_words(const std::array<std::uint32_t, kTwisterWords>& words, WireWriter& out) {
  for (const std::uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) out.u8(static_cast<std::uint8_t>(word >> shift));
  }
}

void read_words(WireReader& in, std::array<std::uint32_t, kTwisterWords>* words) {
  const std::string_view bytes = in.raw(kTwisterWords * 4);
  if (!in.ok()) return;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    (*words)[i / 4] |= std::uint32_t{static_cast<std::uint8_t>(bytes[i])} << (i % 4 * 8);
  }
}

void write_torch(const std::optional<TorchGenerator>& state, WireWriter& out) {
  out.u8(state.has_value());
  if (!state) return;
  out.u64(state->seed);
  out.var(state->left);
  out.var(state->next);
  out.u8(state->seeded);
  out.u8(static_cast<std::uint8_t>(state->next_float.has_value() | state->next_double.has_value() << 1));
  out.f64(state->next_float.value_or(0));
  out.f64(state->next_double.value_or(0));
  write_words(state->words, out);
}

void read_torch(WireReader& in, std::optional<TorchGenerator>* state) {
  if (in.u8() == 0) return;
  TorchGenerator read;
  read.seed = in.u64();
  read.left = static_cast<std::uint32_t>(in.var(kTwisterWords));
  read.next = static_cast<std::uint32_t>(in.var(kTwisterWords));
  read.seeded = in.u8() != 0;
  const std::uint8_t has = in.u8();
  const double next_float = in.f64(), next_double = in.f64();
  if ((has & 1) != 0) read.next_float = static_cast<float>(next_float);
  if ((has & 2) != 0) read.next_double = next_double;
  read_words(in, &read.words);
  // What else torch would read beyond its words, or never come to their end.
  if (read.left < 1 || read.left + read.next > kTwisterWords + 1) in.fail();
  if (in.ok()) *state = read;
}

void write_twister(const std::optional<Twister>& state, WireWriter& out) {
  out.u8(state.has_value());
  if (!state) return;
  out.var(state->position);
  write_words(state->words, out);
}

void read_twister(WireReader& in, std::optional<Twister>* state) {
  if (in.u8() == 0) return;
  Twister read;
  read.position = static_cast<std::uint32_t>(in.var(kTwisterWords));
  read_words(in, &read.words);
  if (in.ok()) *state = read;
}

}  // namespace

std::string write_generators(const Generators& generators) {
  std::string bytes;
  WireWriter out(&bytes);
  out.u8(generators.devices.empty() ? kVersion : kVersionWithDevices);
  write_torch(generators.torch, out);
  write_twister(generators.python, out);
  write_twister(generators.numpy, out);
  out.var(generators.own.size());
  for (const auto& own : generators.own) write_torch(own, out);
  if (generators.devices.empty()) return bytes;
  out.var(generators.devices.size());
  for (const DeviceGenerator& one : generators.devices) {
    out.text(one.device);
    out.u8(one.known);
    out.u64(one.seed);
    out.u64(one.offset);
  }
  return bytes;
}

bool read_generators(std::string_view bytes, Generators* generators) {
  *generators = {};
  WireReader in(bytes);
  const std::uint8_t version = in.u8();
  if (version != kVersion && version != kVersionWithDevices) in.fail();
  read_torch(in, &generators->torch);
  read_twister(in, &generators->python);
  read_twister(in, &generators->numpy);
  for (std::uint64_t n = in.var(kMaxGenerators); n > 0 && in.ok(); --n) read_torch(in, &generators->own.emplace_back());
  for (std::uint64_t n = version == kVersionWithDevices ? in.var(kMaxGenerators) : 0; n > 0 && in.ok(); --n) {
    DeviceGenerator& one = generators->devices.emplace_back();
    one.device = in.text();
    one.known = in.u8() != 0;
    one.seed = in.u64();
    one.offset = in.u64();
    if (!is_device_name(one.device) || one.offset % 4 != 0) in.fail();
  }
  if (in.ok() && in.at_end()) return true;
  *generators = {};
  return false;
}

}  // namespace finitude::capture
